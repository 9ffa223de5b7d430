package servers

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
)

// PgBouncer is a private PgBouncer that pools by transaction.
type PgBouncer struct {
	server
	PostgresAddress // address of the pool
}

// StartPgBouncer starts a PgBouncer in front of all databases of a PostgreSQL.
func StartPgBouncer(ctx context.Context, postgres PostgresAddress) (*PgBouncer, error) {
	return onFreePorts(ctx, 1, func(ports []int) (*PgBouncer, error) {
		program, err := find("pgbouncer", "pgbouncer", "/usr/sbin/pgbouncer")
		if err != nil {
			return nil, err
		}
		home, err := newHome("pgbouncer", "postgres") // the account of its Debian package
		if err != nil {
			return nil, fmt.Errorf("start PgBouncer: %w", err)
		}
		b := &PgBouncer{PostgresAddress: PostgresAddress{ports[0]}, server: server{
			name:       "PgBouncer",
			home:       home,
			ready:      "process up",
			stopSignal: syscall.SIGTERM, // at once; SIGINT waits for the clients
			command:    func() *exec.Cmd { return home.command(program, "pgbouncer.ini") },
		}}
		config := fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%d user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 1000
default_pool_size = 100
`, postgres.Port, ports[0])
		if err := home.write("pgbouncer.ini", config, 0o600); err != nil {
			return nil, errors.Join(fmt.Errorf("start PgBouncer: %w", err), b.Stop())
		}
		if err := b.begin(ctx); err != nil {
			return nil, err
		}
		return b, nil
	})
}
