package program

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A Dialogue is a process that tells its test, line by line on its standard output, which points it
// has reached, and may wait there for a line on its standard input.
type Dialogue struct {
	*Process
	in    io.Writer
	heard int // lines that Says has returned
}

// StartDialogue starts a program; see StartCmd.
func StartDialogue(t testing.TB, cmd *exec.Cmd) *Dialogue {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatalf("make pipe: %v", err)
	}
	return &Dialogue{Process: StartCmd(t, cmd), in: in}
}

// Says waits for the next line, which must be one of these, and returns it.
func (d *Dialogue) Says(want ...string) string {
	d.t.Helper()
	said := d.Read(&d.Stdout, fmt.Sprintf("any of %q", want), func(said string) bool { return strings.Count(said, "\n") > d.heard })
	line := strings.Split(said, "\n")[d.heard]
	if !slices.Contains(want, line) {
		d.t.Fatalf("%s said %q, none of %q", d, line, want)
	}
	d.heard++
	return line
}

// Tell sends the process a line.
func (d *Dialogue) Tell(line string) {
	d.t.Helper()
	if _, err := io.WriteString(d.in, line+"\n"); err != nil {
		d.t.Fatalf("speak to %s: %v", d, err)
	}
}

// KillThere kills the process, which must still wait at the point that Says has returned last.
func (d *Dialogue) KillThere() {
	d.t.Helper()
	d.KillRunning()
	if said := d.Stdout.String(); strings.Count(said, "\n") != d.heard {
		d.t.Errorf("%s went on: it said %q", d, said)
	}
}

// Stop is the process's side: it says the point and waits until the test tells it a line. Several
// goroutines may stop at the same time; then each line lets one of them go on.
func Stop(point string) {
	fmt.Println(point)
	<-told()
}

// told has the lines that the test tells this process.
var told = sync.OnceValue(func() <-chan struct{} {
	lines := make(chan struct{})
	go func() {
		for scanner := bufio.NewScanner(os.Stdin); scanner.Scan(); {
			lines <- struct{}{}
		}
	}()
	return lines
})
