package children_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/twoqueue/twoqueue/compose/servers/children"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// The main thread never ends, so no test may use it.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { servertest.Main(m) }

// To the kernel the end of the starting thread is the end of the parent process. Package servers
// tests the effect of the parent's death on a child.
func TestAChildOutlivesTheThreadThatAskedForIt(t *testing.T) {
	heard := make(chan string, 1)
	cmd := exec.Command("cat") // prints its input, and ends with it
	cmd.Stdout = children.Lines(func(line string) { heard <- line })
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var cat *children.Child
	thread := make(chan int)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its goroutine
		cat, err = children.Start(cmd)
		thread <- syscall.Gettid()
	}()
	task := fmt.Sprintf("/proc/self/task/%d", <-thread)
	if err != nil {
		t.Fatal(err)
	}
	defer cat.Kill()
	servertest.Eventually(t, "the thread has ended", func() bool {
		_, err := os.Stat(task)
		return errors.Is(err, fs.ErrNotExist)
	})
	if _, err := fmt.Fprintln(in, "still here"); err != nil {
		t.Errorf("the child gets no input: %v", err)
	}
	in.Close()
	if !cat.Await(servertest.Patience) || cat.Err() != nil || cat.Killed() {
		t.Fatalf("the child has ended: %v", cat.Cmd.ProcessState)
	}
	if line := servertest.Next(t, "the child answers", heard); line != "still here" {
		t.Errorf("the child said %q", line)
	}
}
