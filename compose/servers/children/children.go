// Package children starts processes that end when this one ends in any way. That needs Linux.
package children

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// leftBehind is how long a child's own children may hold its output after its end. Then the child
// counts as ended, with exec.ErrWaitDelay.
const leftBehind = time.Minute

// A Child is a process that Start started.
type Child struct {
	Cmd *exec.Cmd

	ended chan struct{} // closed when it has ended
	err   error         // the result of Wait; valid once ended is closed
}

// Start starts a command in its own process group, so that a Ctrl-C reaches only this process. When
// this process ends, the kernel sends the child SIGKILL, or the command's own Pdeathsig.
//
// The kernel sends that signal as soon as the thread ends that started the child. So one goroutine,
// locked to its thread, starts the child and stays until the child has ended.
func Start(cmd *exec.Cmd) (*Child, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Setpgid = true
	if cmd.SysProcAttr.Pdeathsig == 0 {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = leftBehind
	}
	c := &Child{Cmd: cmd, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
			close(c.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

// Ended returns a channel that is closed when the child has ended and all of its output has been
// read.
func (c *Child) Ended() <-chan struct{} { return c.ended }

// HasEnded reports whether the child has ended.
func (c *Child) HasEnded() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// Await waits until the child has ended, and returns false if it does not within the limit.
func (c *Child) Await(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-c.ended:
		return true
	case <-timer.C:
		return false
	}
}

// Err waits until the child has ended, and returns the result of exec.Cmd.Wait.
func (c *Child) Err() error {
	<-c.ended
	return c.err
}

// Signal sends a signal. It fails only if the child has ended.
func (c *Child) Signal(s os.Signal) error { return c.Cmd.Process.Signal(s) }

// Kill ends the child with SIGKILL, even if it is stopped, and returns when it has ended.
func (c *Child) Kill() {
	_ = c.Signal(syscall.SIGKILL) // fails if the child has ended
	<-c.ended
}

// Killed waits until the child has ended, and reports whether SIGKILL ended it.
func (c *Child) Killed() bool {
	<-c.ended
	status, _ := c.Cmd.ProcessState.Sys().(syscall.WaitStatus)
	return status.Signaled() && status.Signal() == syscall.SIGKILL
}

// Lines returns a writer that calls with for each written line, without its line end. It may be
// used concurrently; with is called for one line at a time.
func Lines(with func(line string)) io.Writer { return &lines{with: with} }

type lines struct {
	with func(line string)

	mu   sync.Mutex
	rest []byte // the beginning of an unfinished line
}

func (l *lines) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, text...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			return len(text), nil
		}
		l.with(string(line))
		l.rest = rest
	}
}
