package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
)

// A child is a process that plays a part.
type child struct {
	part  part
	cmd   *exec.Cmd
	ready chan struct{} // closed when it has said so
	done  chan struct{} // closed when it has ended
	err   error         // why; valid once done is closed

	dismissed atomic.Bool // it was told to end
}

// start starts a child. ctx ends it with SIGKILL. What it says on its standard
// error goes to say, line by line.
func start(ctx context.Context, p part, say func(line string)) (*child, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p, err)
	}
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p, err)
	}
	c := &child{
		part:  p,
		cmd:   exec.CommandContext(ctx, program),
		ready: make(chan struct{}),
		done:  make(chan struct{}),
	}
	c.cmd.Env = append(os.Environ(), partVariable+"="+string(text))
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is the director's to handle
	_, err = c.cmd.StdinPipe()                              // open as long as the director lives
	stdout, err2 := c.cmd.StdoutPipe()
	stderr, err3 := c.cmd.StderrPipe()
	if err := errors.Join(err, err2, err3, c.cmd.Start()); err != nil {
		return nil, fmt.Errorf("start %s: %w", p, err)
	}
	go c.attend(stdout, stderr, say)
	return c, nil
}

// attend stays with the child until it has ended.
func (c *child) attend(stdout, stderr io.Reader, say func(string)) {
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			say(c.part.String() + ": " + lines.Text())
		}
	}()
	if lines := bufio.NewScanner(stdout); lines.Scan() {
		close(c.ready)
	}
	_, _ = io.Copy(io.Discard, stdout)
	<-heard
	c.err = c.cmd.Wait()
	close(c.done)
}

// awaitReady waits until the child plays its part.
func (c *child) awaitReady(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	case <-c.done:
		return fmt.Errorf("%s ended: %w", c.part, c.err)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// kill ends the child as a crash would, and says when.
func (c *child) kill() time.Time {
	c.dismissed.Store(true)
	_ = c.cmd.Process.Kill() // fails only when it has ended already
	<-c.done
	return time.Now()
}

// freeze has the child stand still for a time. wake ends that.
func (c *child) freeze(ctx context.Context, d time.Duration) error {
	if err := c.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("freeze %s: %w", c.part, err)
	}
	return sleep(ctx, d)
}

func (c *child) wake() { _ = c.cmd.Process.Signal(syscall.SIGCONT) }

// stop has the child finish what it is at.
func (c *child) stop() error {
	c.dismissed.Store(true)
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // fails only when it has ended already
	<-c.done
	if c.err != nil {
		return fmt.Errorf("stop %s: %w", c.part, c.err)
	}
	return nil
}

// crashed tells whether the child was ended by SIGKILL.
func (c *child) crashed() bool {
	status, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}
