package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/twoqueue/twoqueue/compose/servers/children"
)

// A child is a process of the demo.
type child struct {
	*children.Child
	part  part
	ready chan struct{} // closed when the child has reported that it works
	last  string        // the last line of its output; valid once it has ended

	dismissed atomic.Bool // the director has ended it
}

// performance returns the command for a part that this program plays itself.
func performance(ctx context.Context, p part) (*exec.Cmd, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p, err)
	}
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p, err)
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), partVariable+"="+string(text))
	return cmd, nil
}

// start starts a child. A line of its output that contains marker means that it works; start passes
// the other lines to say.
func start(p part, cmd *exec.Cmd, marker string, say func(line string)) (*child, error) {
	c := &child{part: p, ready: make(chan struct{})}
	isReady := sync.OnceFunc(func() { close(c.ready) })
	cmd.Stdout = children.Lines(func(line string) {
		if strings.Contains(line, marker) {
			isReady()
			return
		}
		c.last = line
		say(line)
	})
	cmd.Stderr = cmd.Stdout
	var err error
	if c.Child, err = children.Start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", p, err)
	}
	return c, nil
}

// end waits until the child has ended, and returns its error with its last line of output.
func (c *child) end() error {
	err := c.Err()
	if err != nil && c.last != "" {
		err = fmt.Errorf("%w; its last output: %s", err, c.last)
	}
	return err
}

// awaitReady waits until the child works.
func (c *child) awaitReady(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	case <-c.Ended():
		return fmt.Errorf("%s ended: %w", c.part, c.end())
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// kill ends the child with SIGKILL, like a crash.
func (c *child) kill() {
	c.dismissed.Store(true)
	c.Kill()
}

// freeze stops the child (SIGSTOP) until wake.
func (c *child) freeze() error {
	if err := c.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("freeze %s: %w", c.part, err)
	}
	return nil
}

func (c *child) wake() { _ = c.Signal(syscall.SIGCONT) }

// stop ends the child with SIGTERM, which lets it drain.
func (c *child) stop() error {
	c.dismissed.Store(true)
	_ = c.Signal(syscall.SIGTERM) // it may have ended before
	if err := c.end(); err != nil {
		return fmt.Errorf("stop %s: %w", c.part, err)
	}
	return nil
}
