package servers

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twoqueue/twoqueue/compose/servers/children"
)

// process is a child process: a server or a tool. It counts as ended when the child and all
// descendants that share its output are gone.
type process struct {
	*children.Child
	log *logTail
}

// startProcess is the only function that starts a child.
func startProcess(cmd *exec.Cmd, ready string, log io.Writer) (*process, error) {
	p := &process{log: &logTail{marker: []byte(ready), ready: make(chan struct{}), tee: log}}
	if cmd.Stdout == nil {
		cmd.Stdout = p.log
	}
	cmd.Stderr = p.log
	cmd.WaitDelay = stopLimit // for processes that outlive it
	var err error
	if p.Child, err = children.Start(cmd); err != nil {
		return nil, fmt.Errorf("start process: %w", err)
	}
	return p, nil
}

// awaitReady returns when the process has logged that it is ready. On failure it ends the process
// and returns an error with the tail of the log.
func (p *process) awaitReady(ctx context.Context) error {
	select {
	case <-p.log.ready:
		return nil
	case <-p.Ended():
		return fmt.Errorf("await readiness: it ended (%v); its log:\n%s", p.Err(), p.log)
	case <-ctx.Done():
		p.kill()
		return fmt.Errorf("await readiness: %w; its log:\n%s", context.Cause(ctx), p.log)
	}
}

// stop sends the process a signal to end, and kills it if it does not end within the limit.
func (p *process) stop(signal syscall.Signal, limit time.Duration) error {
	_ = p.Signal(signal) // fails if the process has ended
	if p.Await(limit) {
		return nil
	}
	p.kill()
	return fmt.Errorf("await end: killed after %v; its log:\n%s", limit, p.log)
}

// kill ends the process and then its descendants, and returns when all are gone.
func (p *process) kill() {
	p.freeze() // a frozen process starts no others meanwhile
	rest := descendants(p.Cmd.Process.Pid)
	_ = p.Signal(syscall.SIGKILL) // fails if the process has ended
	for _, pid := range rest {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended with its parent
	}
	<-p.Ended()
}

// freeze stops the process with SIGSTOP, and returns when it is stopped or has ended, or after
// stopLimit.
func (p *process) freeze() {
	_ = p.Signal(syscall.SIGSTOP) // fails if the process has ended
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	limit := time.After(stopLimit)
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Cmd.Process.Pid))
		if fields := statFields(stat); err != nil || len(fields) == 0 || strings.Contains("TtZX", fields[0]) {
			return
		}
		select {
		case <-p.Ended():
			return
		case <-limit:
			return
		case <-ticker.C:
		}
	}
}

// freezeAll stops the process and its descendants with SIGSTOP.
func (p *process) freezeAll() {
	p.freeze() // a frozen process starts no others meanwhile
	for _, pid := range descendants(p.Cmd.Process.Pid) {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // fails if the process has ended
	}
}

// thawAll continues the process and its descendants. It does nothing to running processes.
func (p *process) thawAll() {
	for _, pid := range descendants(p.Cmd.Process.Pid) {
		_ = syscall.Kill(pid, syscall.SIGCONT) // fails if the process has ended
	}
	_ = p.Signal(syscall.SIGCONT)
}

// statFields returns the fields of a /proc/PID/stat from the state on: "pid (name) state ppid …",
// where the name may contain any character.
func statFields(stat []byte) []string {
	return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
}

// run runs a command until it ends. Its error contains the command's output.
func run(ctx context.Context, cmd *exec.Cmd) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	name := filepath.Base(cmd.Path)
	p, err := startProcess(cmd, "", nil)
	if err != nil {
		return fmt.Errorf("run %s: %w", name, err)
	}
	select {
	case <-p.Ended():
		err = p.Err()
	case <-ctx.Done():
		p.kill()
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("run %s: %w; it wrote:\n%s", name, err, p.log)
	}
	return nil
}

// descendants lists the visible processes below pid.
func descendants(pid int) []int {
	children := make(map[int][]int)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
		}
		fields := statFields(stat)
		if len(fields) < 2 {
			continue
		}
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], child)
	}
	all := children[pid]
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

const (
	tailSize  = 16 << 10
	tailShown = 4 << 10 // in an error, so that other errors stay visible
)

// logTail keeps the end of a log and signals when the log contains the marker.
type logTail struct {
	tee   io.Writer
	ready chan struct{} // closed at the first marker

	mu     sync.Mutex
	marker []byte // empty after the first marker
	tail   []byte
}

func (l *logTail) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tail = append(l.tail, text...)
	if len(l.marker) > 0 && bytes.Contains(l.tail, l.marker) {
		l.marker = nil
		close(l.ready)
	}
	if over := len(l.tail) - tailSize; over > 0 {
		l.tail = append(l.tail[:0], l.tail[over:]...)
	}
	if l.tee != nil {
		_, _ = l.tee.Write(text) // an error of tee must not stop the server
	}
	return len(text), nil
}

func (l *logTail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.tail[max(0, len(l.tail)-tailShown):])
}
