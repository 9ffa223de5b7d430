package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// PostgresOptions are the options of a PostgreSQL; nil means all defaults.
type PostgresOptions struct {
	// Fast omits waiting for the disk (fsync). Only for a server that is never killed.
	Fast bool
	// Config holds further lines for postgresql.conf, such as "wal_level = logical".
	Config []string
	// TLS makes the server accept only TLS, from clients whose certificates this authority has
	// signed for the user's name.
	TLS *Authority
	// Log receives the server's log. Without it the log is kept only for errors.
	Log io.Writer
}

// Postgres is a private PostgreSQL that trusts every user.
type Postgres struct {
	server
	PostgresAddress
	programs string // the folder of the programs of its release
}

const postgresPrograms = "/usr/lib/postgresql/*/bin/"

// StartPostgres starts the newest PostgreSQL installed, on new data.
func StartPostgres(ctx context.Context, options *PostgresOptions) (*Postgres, error) {
	if options == nil {
		options = new(PostgresOptions)
	}
	return startPostgres(ctx, options, func(programs string, home home) error {
		return run(ctx, home.command(filepath.Join(programs, "initdb"), "--pgdata=data", "--no-sync",
			"--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C"))
	})
}

// StartStandby starts a hot standby that streams from the primary: it answers queries, and accepts
// no writes until Promote. It replicates synchronously if the primary was started with
// "synchronous_standby_names = '*'"; the primary then commits nothing before the standby has
// connected. options are the standby's own.
func StartStandby(ctx context.Context, primary *Postgres, options *PostgresOptions) (*Postgres, error) {
	if options == nil {
		options = new(PostgresOptions)
	}
	return startPostgres(ctx, options, func(programs string, home home) error {
		return run(ctx, home.command(filepath.Join(programs, "pg_basebackup"), "--pgdata=data", "--no-sync",
			"--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf", "--dbname="+primary.URL()))
	})
}

// Promote makes a standby the primary, and returns when it accepts writes. The old primary is not
// informed: if it runs, or is restarted, it accepts writes too.
func (p *Postgres) Promote(ctx context.Context) error {
	seconds := int(startLimit.Seconds())
	cmd := p.home.command(filepath.Join(p.programs, "pg_ctl"), "promote", "--pgdata=data", "--wait", fmt.Sprintf("--timeout=%d", seconds))
	if err := run(ctx, cmd); err != nil {
		return fmt.Errorf("promote PostgreSQL: %w", err)
	}
	return nil
}

// startPostgres starts a PostgreSQL on data that fill creates in the home.
func startPostgres(ctx context.Context, options *PostgresOptions, fill func(programs string, home home) error) (*Postgres, error) {
	return onFreePorts(ctx, 1, func(ports []int) (*Postgres, error) {
		program, err := find("postgres", "postgresql", postgresPrograms+"postgres")
		if err != nil {
			return nil, err
		}
		home, err := newHome("postgres", "postgres")
		if err != nil {
			return nil, fmt.Errorf("start PostgreSQL: %w", err)
		}
		p := &Postgres{PostgresAddress: PostgresAddress{ports[0]}, programs: filepath.Dir(program), server: server{
			name:       "PostgreSQL",
			home:       home,
			ready:      "database system is ready to accept",
			stopSignal: syscall.SIGINT, // fast shutdown; SIGTERM waits for the clients
			log:        options.Log,
			command:    func() *exec.Cmd { return home.command(program, "-D", "data") },
		}}
		err = fill(p.programs, home)
		if err == nil {
			err = home.write("data/postgresql.conf", postgresConfig(options, ports[0]), 0o600)
		}
		if err == nil && options.TLS != nil {
			err = errors.Join(options.TLS.equip(home),
				home.write("data/pg_hba.conf", "hostssl all all 127.0.0.1/32 trust clientcert=verify-full\n", 0o600))
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("start PostgreSQL: %w", err), p.Stop())
		}
		if err := p.begin(ctx); err != nil {
			return nil, err
		}
		return p, nil
	})
}

func postgresConfig(options *PostgresOptions, port int) string {
	lines := []string{
		"listen_addresses = '127.0.0.1'",
		fmt.Sprintf("port = %d", port),
		"unix_socket_directories = '..'", // the home; a relative name is never too long
		"max_connections = 300",
		"dynamic_shared_memory_type = mmap", // a small container may have no /dev/shm
		"timezone = 'UTC'",
	}
	if options.Fast {
		lines = append(lines, "fsync = off", "synchronous_commit = off", "full_page_writes = off")
	}
	if options.TLS != nil { // paths from the data folder
		lines = append(lines, "ssl = on", "ssl_ca_file = '../ca.pem'", "ssl_cert_file = '../cert.pem'", "ssl_key_file = '../key.pem'")
	}
	return strings.Join(append(lines, options.Config...), "\n") + "\n"
}
