package program

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// commands is the path of the commands' packages.
const commands = "github.com/twoqueue/twoqueue/cmd/"

// Main runs the tests as servertest.Main does, in a test binary that runs commands. At the end it
// deletes commands that were built for this binary alone.
func Main(m *testing.M, ignored ...goleak.Option) {
	code := servertest.Run(m, ignored...)
	if err := built.remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// built has the commands that this test binary has built, or found built, so far.
var built = builder{made: make(map[string]error)}

type builder struct {
	mu     sync.Mutex
	folder string
	own    bool // no other binary uses the folder
	made   map[string]error
}

// Path returns the file of a command, and builds it first if needed. Test binaries that run
// together share the file. The test binary must have called Main.
func Path(t testing.TB, command string) string {
	t.Helper()
	path, err := built.path(command)
	if err != nil {
		t.Fatalf("build %s: %v", command, err)
	}
	return path
}

func (b *builder) path(command string) (string, error) {
	b.mu.Lock() // one build at a time: the compiler uses all cores by itself
	defer b.mu.Unlock()
	if err := b.open(); err != nil {
		return "", err
	}
	path := filepath.Join(b.folder, command)
	err, known := b.made[command]
	if !known {
		err = b.build(command, path)
		b.made[command] = err
	}
	return path, err
}

func (b *builder) open() error {
	if b.folder != "" {
		return nil
	}
	together, err := servers.FindShared()
	if err != nil {
		return err
	}
	if together.Folder != "" {
		b.folder = filepath.Join(together.Folder, "commands")
		return os.MkdirAll(b.folder, 0o755)
	}
	b.folder, err = os.MkdirTemp("", "twoqueue-commands-")
	b.own = err == nil
	return err
}

// build builds a command, unless another test binary has built it.
func (b *builder) build(command, path string) error {
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }() // Close unlocks it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	// The binary is static, as in a release. The test's context would stop a build that other tests
	// wait for.
	if err := servertest.TryGo(context.Background(), "build", "-o", path+".new", commands+command); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (b *builder) remove() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.own {
		return nil
	}
	return os.RemoveAll(b.folder)
}

// commandPrefixes are the prefixes of the variables that the commands read.
var commandPrefixes = []string{"BRIDGE_", "EMAIL_", "SHOP_", "OTEL_", "NO_COLOR="}

// Environment returns the test's environment without the variables that the commands read.
func Environment() (env []string) {
	for _, entry := range os.Environ() {
		read := false
		for _, name := range commandPrefixes {
			read = read || strings.HasPrefix(entry, name)
		}
		if !read {
			env = append(env, entry)
		}
	}
	return env
}

var variable = regexp.MustCompile(`^[A-Z][A-Z0-9_]*=`)

// Command returns a command that is not started. args are its arguments, and in the form NAME=value
// its variables; of two with one name the last counts. The command is killed when the test ends.
func Command(t testing.TB, command string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), Path(t, command))
	cmd.Env = Environment()
	for _, arg := range args {
		if variable.MatchString(arg) {
			cmd.Env = append(cmd.Env, arg)
		} else {
			cmd.Args = append(cmd.Args, arg)
		}
	}
	return cmd
}
