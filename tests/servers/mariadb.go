package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// MariaDBOptions are what a MariaDB can be given; nil means all defaults.
type MariaDBOptions struct {
	// Fast leaves out the waiting for the disk. Only for a server that is
	// never killed.
	Fast bool
	// Config holds further options, such as "innodb_lock_wait_timeout=3".
	Config []string
	// TLS has the server speak nothing else. It checks a client's certificate by this
	// authority if its user has REQUIRE X509.
	TLS *Authority
	// Log receives the server's log; by default it is kept only for errors.
	Log io.Writer
}

// MariaDB is a private MariaDB whose root has no password.
type MariaDB struct {
	server
	MariaDBAddress
}

// StartMariaDB starts a MariaDB on new data.
func StartMariaDB(ctx context.Context, options *MariaDBOptions) (*MariaDB, error) {
	if options == nil {
		options = new(MariaDBOptions)
	}
	return onFreePorts(ctx, 1, func(ports []int) (*MariaDB, error) {
		return startMariaDB(ctx, options, ports[0])
	})
}

func startMariaDB(ctx context.Context, options *MariaDBOptions, port int) (*MariaDB, error) {
	program, err := find("mariadbd", "mariadb-server", "/usr/sbin/mariadbd")
	if err != nil {
		return nil, err
	}
	install, err := find("mariadb-install-db", "mariadb-server", "/usr/bin/mariadb-install-db")
	if err != nil {
		return nil, err
	}
	home, err := newHome("mariadb", "mysql")
	if err != nil {
		return nil, fmt.Errorf("start MariaDB: %w", err)
	}
	args := []string{
		"--no-defaults",
		"--datadir=" + home.path("data"),
		fmt.Sprintf("--port=%d", port),
		"--bind-address=127.0.0.1",
		"--socket=../socket", // from the data: a relative name is never too long
		"--pid-file=" + home.path("pid"),
		"--skip-name-resolve",
		"--max-connections=300",
		"--character-set-server=utf8mb4",
	}
	if options.Fast {
		args = append(args, "--innodb-flush-log-at-trx-commit=0", "--skip-innodb-doublewrite")
	}
	if options.TLS != nil {
		if err := options.TLS.equip(home); err != nil {
			return nil, errors.Join(fmt.Errorf("start MariaDB: %w", err), os.RemoveAll(home.folder))
		}
		args = append(args, "--ssl-ca="+home.path("ca.pem"), "--ssl-cert="+home.path("cert.pem"),
			"--ssl-key="+home.path("key.pem"), "--require-secure-transport=ON")
	}
	for _, option := range options.Config {
		args = append(args, "--"+option)
	}
	m := &MariaDB{MariaDBAddress: MariaDBAddress{port}, server: server{
		name:       "MariaDB",
		home:       home,
		ready:      "ready for connections",
		stopSignal: syscall.SIGTERM,
		log:        options.Log,
		command:    func() *exec.Cmd { return home.command(program, args...) },
	}}
	err = run(ctx, home.command(install, "--no-defaults", "--datadir="+home.path("data"),
		"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start MariaDB: %w", err), m.Stop())
	}
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	return m, nil
}
