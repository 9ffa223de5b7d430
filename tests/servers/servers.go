// Package servers starts private RabbitMQ, PostgreSQL, MariaDB (or MySQL) and PgBouncer
// servers from the Debian packages of this machine: each with ports and a
// temporary folder of its own, each a child of this process.
//
// The context given to a Start function bounds the start, not the server's
// life. A server lives until Stop, which leaves neither a process nor a folder
// behind, or until this process ends, however it ends: the kernel kills every
// child of a dead parent (only the folder is left then). That needs Linux.
//
// A server is ready when its own log says so, so no answer of a stranger on
// the same port can be taken for it, and nothing has to be polled. A start
// that failed because somebody took one of the free ports first is repeated
// with others.
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

// server is what all servers have in common: a folder and a process that can be ended and started again in the same place.
type server struct {
	name       string
	home       home
	ready      string // the words in its log that say it is ready
	stopSignal syscall.Signal
	command    func() *exec.Cmd
	log        io.Writer // beside the tail kept for errors; may be nil
	companion  *process  // a process that lives until Stop; may be nil

	mu      sync.Mutex
	process *process // nil while the server is down
	stopped bool     // for good
}

// Kill ends the server and all its processes with SIGKILL and returns when
// they are gone. Its data stay; Restart starts it again on them.
func (s *server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		s.process.kill()
		s.process = nil
	}
}

// Freeze stops all processes of the server with SIGSTOP: the kernel still takes connections
// for it, and nothing answers them. Thaw ends that, and so do Kill, Shutdown, Restart and Stop.
func (s *server) Freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		s.process.freezeAll()
	}
}

// Thaw is the end of Freeze.
func (s *server) Thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		s.process.thawAll()
	}
}

// Shutdown ends the server in its own orderly way and returns when all its
// processes are gone. Its data stay; Restart starts it again on them.
func (s *server) Shutdown() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shutdown()
}

// Watch returns nil when ctx ends, and before that an error with the end of the log if
// the server ends by itself.
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

// Restart starts the server again, on the same data and ports. One that still
// runs is shut down first.
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

// start starts the process and waits until it is ready. The caller holds mu,
// or is the only one who knows the server.
func (s *server) start(ctx context.Context) error {
	err := s.startOnce(ctx)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		// Seen with RabbitMQ 3.10: a node of a cluster hangs in its boot, on a busy machine.
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

// begin makes the first start of a new server; one that fails leaves nothing.
func (s *server) begin(ctx context.Context) error {
	if err := s.start(ctx); err != nil {
		return errors.Join(err, s.Stop())
	}
	return nil
}

// find returns the path of a program: from the PATH, or the newest that one
// of the patterns finds.
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

// newest compares paths that differ by a version number in them: the longer
// number is the newer one (9 < 15).
func newest(paths []string) string {
	best := paths[0]
	for _, path := range paths[1:] {
		if len(path) > len(best) || len(path) == len(best) && path > best {
			best = path
		}
	}
	return best
}
