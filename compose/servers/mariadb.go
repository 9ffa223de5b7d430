package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
)

// MariaDBOptions are the options of a MariaDB or a MySQL; nil means all defaults.
type MariaDBOptions struct {
	// Fast omits waiting for the disk. Only for a server that is never killed.
	Fast bool
	// Config holds further options, such as "innodb_lock_wait_timeout=3".
	Config []string
	// TLS makes the server accept only TLS. The server checks a client's certificate by this
	// authority if its user has REQUIRE X509.
	TLS *Authority
	// Log receives the server's log. Without it the log is kept only for errors.
	Log io.Writer
}

// MariaDB is a private MariaDB whose root has no password. On a machine that has only MySQL it is a
// MySQL, and takes the same options.
type MariaDB struct {
	server
	MariaDBAddress
	args []string
}

// Replicates returns the options of a primary and a replica of StartReplica.
func Replicates() []string {
	return []string{"log-bin=binlog", "binlog-format=ROW", "log-slave-updates", "sync-binlog=1"}
}

// StartReplica starts a MariaDB that replicates all of the primary, by GTID, and is read-only until
// Promote. The primary must have been started with Replicates. For semi-synchronous replication,
// set the options rpl-semi-sync-master-… of the primary and rpl-semi-sync-slave-enabled=ON of the
// replica.
func StartReplica(ctx context.Context, primary *MariaDB, options *MariaDBOptions) (*MariaDB, error) {
	var given MariaDBOptions
	if options != nil {
		given = *options
	}
	given.Config = append(append(Replicates(), "read-only=ON"), given.Config...)
	m, err := StartMariaDB(ctx, &given)
	if err != nil {
		return nil, err
	}
	if _, err := m.query(ctx, fmt.Sprintf("CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=%d, MASTER_USER='root', "+
		"MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1; START SLAVE", primary.Port)); err != nil {
		return nil, errors.Join(fmt.Errorf("start replica: %w", err), m.Stop())
	}
	return m, nil
}

// Promote makes a replica the primary, once it has applied all received transactions. The old
// primary is not informed: if it runs, or is restarted, it accepts writes too.
func (m *MariaDB) Promote(ctx context.Context) error {
	status, err := m.query(ctx, `STOP SLAVE IO_THREAD; SHOW SLAVE STATUS\G`)
	if err == nil {
		_, received, _ := strings.Cut(status, "Gtid_IO_Pos: ")
		received, _, _ = strings.Cut(received, "\n")
		var waited string
		waited, err = m.query(ctx, fmt.Sprintf("SELECT MASTER_GTID_WAIT('%s', %d)", received, int(startLimit.Seconds())))
		if err == nil && strings.TrimSpace(waited) != "0" {
			err = fmt.Errorf("apply the primary's transactions up to %s: not within %v", received, startLimit)
		}
	}
	if err == nil {
		m.Reconfigure("read-only=OFF")
		_, err = m.query(ctx, "STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = OFF")
	}
	if err != nil {
		return fmt.Errorf("promote MariaDB: %w", err)
	}
	return nil
}

// query runs statements in the server's own client, and returns the output, one line for each row.
func (m *MariaDB) query(ctx context.Context, statements string) (string, error) {
	program, err := find("mariadb", "mariadb-client", "/usr/bin/mariadb")
	if err != nil {
		return "", err
	}
	cmd := m.home.command(program, "--no-defaults", "--host=127.0.0.1", fmt.Sprintf("--port=%d", m.Port), "--user=root",
		"--batch", "--skip-column-names", "--execute="+statements)
	var output bytes.Buffer
	cmd.Stdout = &output
	err = run(ctx, cmd)
	return output.String(), err
}

// Reconfigure adds options for the next Restart, as in MariaDBOptions.Config.
func (m *MariaDB) Reconfigure(options ...string) {
	for _, option := range options {
		m.args = append(m.args, "--"+option)
	}
}

// A flavour has the differences between MariaDB and MySQL.
type flavour struct {
	name, program, debianPackage string

	args []string
	fill func(program string, home home) (*exec.Cmd, error) // returns the command that creates the data
}

var (
	mariaDB = flavour{name: "MariaDB", program: "mariadbd", debianPackage: "mariadb-server", fill: fillMariaDB}
	mySQL   = flavour{name: "MySQL", program: "mysqld", debianPackage: "mysql-server", fill: fillMySQL,
		args: []string{"--mysqlx=OFF"}} // it would listen on another port
)

// StartMariaDB starts a MariaDB on new data, or a MySQL if only MySQL is installed.
func StartMariaDB(ctx context.Context, options *MariaDBOptions) (*MariaDB, error) {
	if options == nil {
		options = new(MariaDBOptions)
	}
	f := mariaDB
	program, err := f.find()
	if errors.Is(err, ErrMissing) {
		if other, e := mySQL.find(); e == nil {
			f, program, err = mySQL, other, nil
		}
	}
	if err != nil {
		return nil, err
	}
	return onFreePorts(ctx, 1, func(ports []int) (*MariaDB, error) {
		return f.start(ctx, program, options, ports[0])
	})
}

func (f flavour) find() (program string, err error) {
	return find(f.program, f.debianPackage, "/usr/sbin/"+f.program)
}

func (f flavour) start(ctx context.Context, program string, options *MariaDBOptions, port int) (*MariaDB, error) {
	home, err := newHome("mariadb", "mysql")
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", f.name, err)
	}
	args := append([]string{
		"--no-defaults",
		"--datadir=" + home.path("data"),
		fmt.Sprintf("--port=%d", port),
		fmt.Sprintf("--server-id=%d", port), // unique, for replication
		"--bind-address=127.0.0.1",
		"--socket=../socket", // relative to the data folder, so never too long
		"--pid-file=" + home.path("pid"),
		"--skip-name-resolve",
		"--max-connections=300",
		"--character-set-server=utf8mb4",
	}, f.args...)
	if options.Fast {
		args = append(args, "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=OFF", "--sync-binlog=0")
	}
	if options.TLS != nil {
		args = append(args, "--ssl-ca="+home.path("ca.pem"), "--ssl-cert="+home.path("cert.pem"),
			"--ssl-key="+home.path("key.pem"), "--require-secure-transport=ON")
	}
	m := &MariaDB{MariaDBAddress: MariaDBAddress{port}, args: args, server: server{
		name:       f.name,
		home:       home,
		ready:      "ready for connections",
		stopSignal: syscall.SIGTERM,
		log:        options.Log,
	}}
	m.Reconfigure(options.Config...)
	m.command = func() *exec.Cmd { return home.command(program, m.args...) }
	filler, err := f.fill(program, home)
	if err == nil {
		err = run(ctx, filler)
	}
	if err == nil && options.TLS != nil {
		err = options.TLS.equip(home)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", f.name, err), m.Stop())
	}
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

func fillMariaDB(_ string, home home) (*exec.Cmd, error) {
	install, err := find("mariadb-install-db", "mariadb-server", "/usr/bin/mariadb-install-db")
	if err != nil {
		return nil, err
	}
	return home.command(install, "--no-defaults", "--datadir="+home.path("data"),
		"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"), nil
}

// fillMySQL creates a root at 127.0.0.1, which is not localhost without name resolution.
func fillMySQL(program string, home home) (*exec.Cmd, error) {
	const root = "CREATE USER root@'127.0.0.1';\nGRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"
	if err := home.write("root.sql", root, 0o600); err != nil {
		return nil, err
	}
	return home.command(program, "--no-defaults", "--initialize-insecure", "--datadir="+home.path("data"),
		"--init-file="+home.path("root.sql")), nil
}
