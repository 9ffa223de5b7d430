// Package servers starts private RabbitMQ, PostgreSQL, MariaDB (or MySQL) and PgBouncer servers
// from the Debian packages of this machine. Each has its own ports and temporary folder, and is a
// child of this process.
//
// The context of a Start function bounds the start, not the server's life. A server lives until
// Stop, which removes its processes and its folder, or until this process ends in any way: the
// kernel kills every child of a dead parent (the folder remains). That needs Linux.
//
// A server is ready when its own log says so. So another program that answers on the same port is never
// mistaken for the server, and nothing is polled. If a start fails because another program took one of
// the ports first, it is repeated with other ports.
package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// ErrMissing says that a server's program is not installed. The error that
// wraps it names the Debian package.
var ErrMissing = errors.New("not installed")

const (
	startLimit = 2 * time.Minute // for one start; the machine may be busy
	stopLimit  = 2 * time.Minute // after it a stopping server is killed
)

// server has the common parts of all servers: a folder, and a process that can be ended and started
// again on the same data.
type server struct {
	name       string
	home       home
	ready      string // words in its log that mean it is ready
	stopSignal syscall.Signal
	command    func() *exec.Cmd
	log        io.Writer // in addition to the tail kept for errors; may be nil
	companion  *process  // a process that lives until Stop; may be nil

	mu      sync.Mutex
	process *process // nil while the server is down
	stopped bool     // Stop was called
}

// Kill ends the server and all its processes with SIGKILL and returns when they are gone. Its data
// remain; Restart starts it again on them.
func (s *server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		s.process.kill()
		s.process = nil
	}
}

// Freeze stops all processes of the server with SIGSTOP: the kernel still accepts connections for
// it, and they get no answer. Thaw, Kill, Shutdown, Restart and Stop end that.
func (s *server) Freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		s.process.freezeAll()
	}
}

// Thaw continues a frozen server.
func (s *server) Thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		s.process.thawAll()
	}
}

// Shutdown ends the server in its own orderly way and returns when all its processes are gone. Its
// data remain; Restart starts it again on them.
func (s *server) Shutdown() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shutdown()
}

// Watch returns nil when ctx ends. If the server ends by itself before, Watch returns an error with
// the end of the log.
func (s *server) Watch(ctx context.Context) error {
	s.mu.Lock()
	p := s.process
	s.mu.Unlock()
	if p == nil {
		return fmt.Errorf("watch %s: it is down", s.name)
	}
	select {
	case <-ctx.Done():
		return nil
	case <-p.Ended():
		return fmt.Errorf("%s has ended by itself (%v); its log:\n%s", s.name, p.Err(), p.log)
	}
}

// Restart starts the server again, on the same data and ports. It first shuts a running server
// down.
func (s *server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return fmt.Errorf("restart %s: it was stopped", s.name)
	}
	if err := s.shutdown(); err != nil {
		return err
	}
	return s.start(ctx)
}

// Stop shuts the server down for good and removes its data. A second Stop
// does nothing.
func (s *server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.shutdown()
	if s.companion != nil {
		s.companion.kill()
		s.companion = nil
	}
	if e := os.RemoveAll(s.home.folder); e != nil {
		err = errors.Join(err, fmt.Errorf("remove data of %s: %w", s.name, e))
	}
	s.stopped = true
	return err
}

// start starts the process and waits until it is ready. The caller holds mu, or has the only
// reference to the server.
func (s *server) start(ctx context.Context) error {
	err := s.startOnce(ctx)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		// Seen with RabbitMQ 3.10 on a busy machine: a node of a cluster hangs while it boots.
		err = s.startOnce(ctx)
	}
	return err
}

func (s *server) startOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	p, err := startProcess(s.command(), s.ready, s.log)
	if err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	if err := p.awaitReady(ctx); err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	s.process = p
	return nil
}

func (s *server) shutdown() error {
	if s.process == nil {
		return nil
	}
	p := s.process
	s.process = nil
	p.thawAll()
	if err := p.stop(s.stopSignal, stopLimit); err != nil {
		return fmt.Errorf("stop %s: %w", s.name, err)
	}
	return nil
}

// begin starts a new server for the first time, and removes all of it if that fails.
func (s *server) begin(ctx context.Context) error {
	if err := s.start(ctx); err != nil {
		return errors.Join(err, s.Stop())
	}
	return nil
}

// find returns the path of a program: the newest match of the patterns, or else the one in the
// PATH.
func find(program, debianPackage string, patterns ...string) (string, error) {
	var found []string
	for _, pattern := range patterns {
		matches, err := filepath.Glob(pattern)
		if err != nil {
			return "", fmt.Errorf("find %s: %w", program, err)
		}
		found = append(found, matches...)
	}
	if len(found) > 0 {
		return newest(found), nil
	}
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	return "", fmt.Errorf("find %s: %w: install it with apt-get install %s, or run ./tests/run, which does",
		program, ErrMissing, debianPackage)
}

// newest returns the path with the highest version number. The paths differ only in that number, so
// the longer one is newer (9 < 15).
func newest(paths []string) string {
	best := paths[0]
	for _, path := range paths[1:] {
		if len(path) > len(best) || len(path) == len(best) && path > best {
			best = path
		}
	}
	return best
}
