package world

import (
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/twoqueue/twoqueue/tests/faults/parts"
	"github.com/twoqueue/twoqueue/tests/servers/children"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// A Process is one sender, verifier or receiver, with its own two links. After
// its death the next one takes its place: same name, same links.
type Process struct {
	Name string
	// Database and Broker are its links.
	Database, Broker *servertest.Valve

	t       testing.TB
	program string
	mutant  string
	brief   parts.Brief
	diary   *Diary

	mu    sync.Mutex
	run   *run // nil before the first start
	lives int
}

// run is one life of a process.
type run struct {
	*children.Child
	page   *page
	killed bool // by us; guarded by the process's mu
}

// newProcess makes the links; the brief's addresses are those of the servers.
func newProcess(t testing.TB, c Config, diary *Diary, name string, b parts.Brief) *Process {
	t.Helper()
	p := &Process{Name: name, t: t, program: c.Program, mutant: c.Mutant, diary: diary}
	p.Database, b.Database = servertest.Through(t, b.Database)
	p.Broker, b.AMQP = servertest.Through(t, b.AMQP)
	if c.Nodes != "" && b.Role != parts.Receiver {
		b.AMQP = c.Nodes // by no link
	}
	p.brief = b
	t.Cleanup(p.Kill)
	return p
}

// Start starts the process, in place of one that is gone.
func (p *Process) Start() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.brief
	b.Seed += uint64(p.lives) << 32 // no life repeats another
	p.lives++
	cmd := servertest.Again(p.t, parts.Variable, b)
	cmd.Env = append(cmd.Env, parts.MutantVariable+"="+p.mutant)
	if p.program != "" {
		cmd.Path = p.program
	}
	r := &run{page: p.diary.page(p.Name)}
	cmd.Stdout, cmd.Stderr = r.page, r.page
	var err error
	if r.Child, err = children.Start(cmd); err != nil {
		p.t.Fatalf("start %s: %v", p.Name, err)
	}
	p.run = r
}

// Await returns a channel that gets the next line of this life's diary that
// contains any of the words.
func (p *Process) Await(words ...string) <-chan string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run.page.expect(words)
}

// Kill ends the process with SIGKILL, also one that is frozen, and returns when
// it is gone.
func (p *Process) Kill() {
	p.mu.Lock()
	r := p.run
	if r != nil {
		r.killed = true
	}
	p.mu.Unlock()
	if r != nil {
		r.Kill()
	}
}

// Freeze stops the process with SIGSTOP, Thaw lets it go on.
func (p *Process) Freeze() { p.signal(syscall.SIGSTOP) }

// Thaw is the end of Freeze.
func (p *Process) Thaw() { p.signal(syscall.SIGCONT) }

func (p *Process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.run.Signal(s) // it may have ended before
}

// Stop asks the process to end in good order and returns when it is gone. One
// that does not end in time has to write its goroutines into the diary, and an
// error says so.
func (p *Process) Stop() error {
	p.signal(syscall.SIGTERM)
	p.mu.Lock()
	r := p.run
	p.mu.Unlock()
	if r.Await(servertest.Patience) {
		return p.Ended()
	}
	p.signal(syscall.SIGQUIT) // Go's run time prints all stacks, and ends
	if !r.Await(servertest.Patience) {
		p.Kill()
	}
	return fmt.Errorf("%s did not end within %v", p.Name, servertest.Patience)
}

// Done is closed when the process is gone.
func (p *Process) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run.Child.Ended()
}

// Ended returns an error if the process has ended by itself and not in good
// order, such as by a panic.
func (p *Process) Ended() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run == nil || p.run.killed || !p.run.HasEnded() {
		return nil
	}
	if err := p.run.Err(); err != nil {
		return fmt.Errorf("%s ended by itself: %w", p.Name, err)
	}
	return nil
}
