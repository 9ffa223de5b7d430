package world

import (
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/twoqueue/twoqueue/compose/servers/children"
	"github.com/twoqueue/twoqueue/tests/faults/parts"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// A Process is one sender, verifier or receiver, with its own two links. After its death Start
// starts another one with the same name and the same links.
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
	killed bool // by Kill; guarded by the process's mu
}

// newProcess makes the links. The brief's addresses are the servers' own.
func newProcess(t testing.TB, c Config, diary *Diary, name string, b parts.Brief) *Process {
	t.Helper()
	p := &Process{Name: name, t: t, program: c.Program, mutant: c.Mutant, diary: diary}
	p.Database, b.Database = servertest.Through(t, b.Database)
	p.Broker, b.AMQP = servertest.Through(t, b.AMQP)
	if c.Nodes != "" && b.Role != parts.Receiver {
		b.AMQP = c.Nodes // without a link
	}
	p.brief = b
	t.Cleanup(p.Kill)
	return p
}

// Start starts the process, also after its death.
func (p *Process) Start() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.brief
	b.Seed += uint64(p.lives) << 32 // each life has another seed
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

// Await returns a channel that gets the next line of this life's diary with any of the words.
func (p *Process) Await(words ...string) <-chan string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run.page.expect(words)
}

// Kill ends the process with SIGKILL, even if it is frozen, and returns when it is gone.
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

// Freeze stops the process with SIGSTOP. Thaw continues it.
func (p *Process) Freeze() { p.signal(syscall.SIGSTOP) }

// Thaw continues a frozen process.
func (p *Process) Thaw() { p.signal(syscall.SIGCONT) }

func (p *Process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.run.Signal(s) // fails if the process has ended
}

// Stop asks the process to end in good order and returns when it is gone. If the process does not
// end in time, it writes its goroutines into the diary, and Stop returns an error.
func (p *Process) Stop() error {
	p.signal(syscall.SIGTERM)
	p.mu.Lock()
	r := p.run
	p.mu.Unlock()
	if r.Await(servertest.Patience) {
		return p.Ended()
	}
	p.signal(syscall.SIGQUIT) // Go's runtime prints all stacks and ends
	if !r.Await(servertest.Patience) {
		p.Kill()
	}
	return fmt.Errorf("%s did not end within %v", p.Name, servertest.Patience)
}

// Done returns a channel that is closed when the process is gone.
func (p *Process) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run.Child.Ended()
}

// Ended returns an error if the process ended by itself with an error, such as a panic.
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
