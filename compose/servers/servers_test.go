package servers_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// parentVariable makes this test binary the parent that TestKilledParentLeavesNoProcesses kills.
const parentVariable = "TWOQUEUE_TEST_PARENT"

func TestMain(m *testing.M) {
	servertest.Play(parentVariable, func(struct{}) error { return playParent() })
	servertest.Main(m)
}

// playParent starts the installed servers and waits to be killed. RabbitMQ's program starts other
// processes; PostgreSQL runs under another account.
func playParent() error {
	ctx := context.Background()
	_, broker := servers.StartRabbitMQ(ctx, nil)
	_, database := servers.StartPostgres(ctx, nil)
	for _, err := range []error{broker, database} {
		if err != nil && !errors.Is(err, servers.ErrMissing) {
			return err
		}
	}
	fmt.Println("started")
	select {}
}

func TestKilledParentLeavesNoProcesses(t *testing.T) {
	folder := tempDir(t)
	cmd := servertest.Again(t, parentVariable, struct{}{})
	cmd.Env = append(cmd.Env, "TMPDIR="+folder)
	parent := program.StartCmd(t, cmd)
	parent.Read(&parent.Stdout, "that its servers have started", func(said string) bool { return said == "started\n" })
	before := processesIn(folder)
	parent.KillRunning()
	if servers, _ := os.ReadDir(folder); len(servers) > 0 && len(before) == 0 {
		t.Fatal("no process was found to begin with")
	}

	// The kernel kills the children without a signal to this process, so it polls.
	servertest.Eventually(t, "no process is left", func() bool { return len(processesIn(folder)) == 0 },
		func() string { return fmt.Sprint(processesIn(folder)) })
}

func TestFailedStartShowsTheLogAndLeavesNothing(t *testing.T) {
	leavesNothing(t)
	_, err := servers.StartPostgres(t.Context(), &servers.PostgresOptions{Config: []string{"no_such_setting = 1"}})
	if errors.Is(err, servers.ErrMissing) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Fatalf("error does not show the log: %v", err)
	}
}

// leavesNothing fails the test if any file or process of its servers remains after the cleanups
// that were registered later.
func leavesNothing(t *testing.T) {
	t.Helper()
	folder := tempDir(t)
	t.Setenv("TMPDIR", folder)
	t.Cleanup(func() {
		left, err := os.ReadDir(folder)
		if err != nil {
			t.Error(err)
		}
		for _, entry := range left {
			t.Errorf("left behind: %s", entry.Name())
		}
		for _, process := range processesIn(folder) {
			t.Errorf("still running: %s", process)
		}
	})
}

// tempDir returns a t.TempDir that the databases' accounts can enter.
func tempDir(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	for _, path := range []string{folder, filepath.Dir(folder)} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// processesIn lists the processes whose working folder is in or below the folder, as every server's
// is.
func processesIn(folder string) []string {
	var found []string
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		cwd, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(cwd, folder+"/") {
			continue
		}
		name, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "comm"))
		found = append(found, filepath.Base(filepath.Dir(link))+" "+strings.TrimSpace(string(name)))
	}
	return found
}
