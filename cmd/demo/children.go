package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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

// performance is the command for a part that this program plays itself.
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

// start starts a child. It is ready when a line that it writes contains marker; the
// other lines go to say.
func start(p part, cmd *exec.Cmd, marker string, say func(line string)) (*child, error) {
	c := &child{part: p, cmd: cmd, ready: make(chan struct{}), done: make(chan struct{})}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true,            // a Ctrl-C is the director's to handle
		Pdeathsig: syscall.SIGKILL, // if the director dies, however it dies, this ends
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p, err)
	}
	cmd.Stderr = cmd.Stdout
	started := make(chan error)
	go func() {
		// The kernel takes the end of this thread for that of the director.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			c.attend(output, marker, say)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", p, err)
	}
	return c, nil
}

// attend stays with the child until it has ended.
func (c *child) attend(output io.Reader, marker string, say func(string)) {
	isReady := sync.OnceFunc(func() { close(c.ready) })
	last := ""
	for lines := bufio.NewScanner(output); lines.Scan(); {
		if line := lines.Text(); strings.Contains(line, marker) {
			isReady()
		} else {
			last = line
			say(line)
		}
	}
	_, _ = io.Copy(io.Discard, output) // a line that was too long
	if c.err = c.cmd.Wait(); c.err != nil && last != "" {
		c.err = fmt.Errorf("%w; its last words: %s", c.err, last)
	}
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

// kill ends the child as a crash would.
func (c *child) kill() {
	c.dismissed.Store(true)
	_ = c.cmd.Process.Kill() // fails only when it has ended already
	<-c.done
}

// freeze has the child stand still until wake.
func (c *child) freeze() error {
	if err := c.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("freeze %s: %w", c.part, err)
	}
	return nil
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
