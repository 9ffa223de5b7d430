// Command together runs a command, such as go test, with a RabbitMQ, a PostgreSQL and a MariaDB (or
// MySQL) that all of its tests share. Package servertest finds these servers:
//
//	together [-only rabbitmq,postgres] command [argument ...]
//
// A kind of server that is not installed is omitted. The command's temporary files, including files
// of a killed test, are in one folder that is removed at the end. together ends with the exit code
// of the command. It passes SIGINT and SIGTERM on, and ends the command when one of the servers
// dies, since its tests would only wait for that server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/compose/servers/children"
)

// endLimit is how long a command may take to end after SIGTERM.
const endLimit = 30 * time.Second

func main() {
	only := flag.String("only", "rabbitmq,postgres,mariadb", "the kinds of servers to start")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "together: which command? See go doc ./tests/servers/together")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := together(ctx, strings.Split(*only, ","), flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "together:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// together runs the command with the servers and returns its exit code.
func together(ctx context.Context, kinds, command []string) (code int, err error) {
	folder, err := os.MkdirTemp("", "twoqueue-")
	if err != nil {
		return 0, fmt.Errorf("make folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if err := os.Chmod(folder, 0o755); err != nil { // databases run as other users
		return 0, fmt.Errorf("open folder: %w", err)
	}
	if err := os.Setenv("TMPDIR", folder); err != nil { // the servers use it too
		return 0, fmt.Errorf("set folder: %w", err)
	}

	var all serverSet
	defer func() { err = errors.Join(err, all.stop()) }()
	shared, err := all.start(ctx, kinds)
	if err != nil {
		return 0, err
	}
	shared.Folder = folder
	environment, err := shared.Environment()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watching := all.watch(ctx, cancel)
	code, err = run(ctx, command, environment)
	died := context.Cause(ctx)
	cancel(nil)
	watching.Wait()
	return code, errors.Join(err, died)
}

// run runs the command until it ends. When ctx ends, it sends SIGTERM to the command.
func run(ctx context.Context, command []string, environment string) (code int, err error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), environment)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	// To its group, so that each of its processes gets the signal, once.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = endLimit
	started, err := children.Start(cmd)
	if err == nil {
		err = started.Err()
	}
	if cmd.Process != nil && ctx.Err() != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // processes that ignored SIGTERM
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil && exit.ExitCode() > 0 {
		return exit.ExitCode(), nil // the command has reported why
	}
	if err != nil {
		return 1, fmt.Errorf("run %s: %w", command[0], err)
	}
	return 0, nil
}

// A server is a server of any kind.
type server interface {
	Watch(ctx context.Context) error
	Kill()
	Stop() error
}

// A serverSet has the started servers.
type serverSet struct {
	mu      sync.Mutex
	servers []server
}

// start starts the servers of these kinds concurrently, except kinds that are not installed.
func (s *serverSet) start(ctx context.Context, kinds []string) (servers.Shared, error) {
	var shared servers.Shared
	starts := map[string]func(context.Context) (server, error){
		"rabbitmq": func(ctx context.Context) (server, error) {
			s, err := servers.StartSharedRabbitMQ(ctx)
			if err == nil {
				shared.RabbitMQ = &s.RabbitMQAddress
			}
			return s, err
		},
		"postgres": func(ctx context.Context) (server, error) {
			s, err := servers.StartSharedPostgres(ctx)
			if err == nil {
				shared.Postgres = &s.PostgresAddress
			}
			return s, err
		},
		"mariadb": func(ctx context.Context) (server, error) {
			s, err := servers.StartSharedMariaDB(ctx)
			if err == nil {
				shared.MariaDB = &s.MariaDBAddress
			}
			return s, err
		},
	}
	starting, ctx := errgroup.WithContext(ctx)
	for _, kind := range slices.Compact(slices.Sorted(slices.Values(kinds))) {
		start, known := starts[kind]
		if !known {
			return shared, errors.Join(fmt.Errorf("there is no kind of server %q", kind), starting.Wait())
		}
		starting.Go(func() error {
			started, err := start(ctx)
			if errors.Is(err, servers.ErrMissing) {
				return nil // a test that needs the server reports it
			}
			if err != nil {
				return err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.servers = append(s.servers, started)
			return nil
		})
	}
	err := starting.Wait()
	return shared, err
}

// watch ends ctx when a server dies.
func (s *serverSet) watch(ctx context.Context, cancel context.CancelCauseFunc) *sync.WaitGroup {
	var watching sync.WaitGroup
	for _, one := range s.servers {
		watching.Go(func() {
			if err := one.Watch(ctx); err != nil {
				cancel(err)
			}
		})
	}
	return &watching
}

// stop kills the servers, whose data are no longer needed, and removes the data.
func (s *serverSet) stop() error {
	var err error
	for _, one := range s.servers {
		one.Kill()
		err = errors.Join(err, one.Stop())
	}
	return err
}
