package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestMain(m *testing.M) { servertest.Main(m) }

var errInterrupted = errors.New("interrupted")

// runs calls together with a shell script and a PostgreSQL, in a folder that must be empty at the
// end.
func runs(t *testing.T, ctx context.Context, script string) (code int, err error) {
	t.Helper()
	folder := t.TempDir()
	for _, path := range []string{folder, filepath.Dir(folder)} {
		if err := os.Chmod(path, 0o755); err != nil { // for the server's account
			t.Fatal(err)
		}
	}
	t.Setenv("TMPDIR", folder)
	t.Setenv("OUT", t.TempDir())
	ctx, cancel := context.WithTimeout(ctx, servertest.Patience)
	defer cancel()
	code, err = together(ctx, []string{"postgres"}, []string{"sh", "-c", script})
	if left, e := os.ReadDir(folder); e != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, e)
	}
	return code, err
}

func TestACommandFindsTheServersAndItsExitCodeIsOurs(t *testing.T) {
	needsPostgres(t)
	code, err := runs(t, t.Context(), `touch "$TMPDIR/a_test_was_here"; echo "$`+servers.SharedVariable+`" >"$OUT/shared"; exit 3`)
	if err != nil || code != 3 {
		t.Fatalf("exit code %d, %v", code, err)
	}
	text, err := os.ReadFile(filepath.Join(os.Getenv("OUT"), "shared"))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(servers.SharedVariable, string(text))
	shared, err := servers.FindShared()
	if err != nil || shared.Postgres == nil || shared.Postgres.Port == 0 || shared.RabbitMQ != nil {
		t.Fatalf("the shared servers are %s, %v", text, err)
	}
}

func TestADeadServerEndsTheCommand(t *testing.T) {
	needsPostgres(t)
	start := time.Now()
	code, err := runs(t, t.Context(), `kill -9 $(head -n 1 "$TMPDIR"/twoqueue-postgres-*/data/postmaster.pid); sleep 1000`)
	if code == 0 || err == nil || !strings.Contains(err.Error(), "PostgreSQL has ended by itself") {
		t.Fatalf("after %v: exit code %d, %v", time.Since(start), code, err)
	}
}

func TestAnInterruptReachesTheCommand(t *testing.T) {
	needsPostgres(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	out := make(chan string)
	go func() { // interrupts once the command runs
		out := <-out
		if err := servertest.Await(ctx, "the command runs", func() (bool, error) { _, err := os.Stat(out); return err == nil, nil }); err == nil {
			cancel(errInterrupted)
		}
	}()
	folder := t.TempDir()
	out <- filepath.Join(folder, "runs")
	code, err := runs(t, ctx, `trap 'touch "`+folder+`/ended"; exit 0' TERM; touch "`+folder+`/runs"; while :; do sleep 0.01; done`)
	if code == 0 || !errors.Is(err, errInterrupted) {
		t.Errorf("exit code %d, %v", code, err)
	}
	if _, err := os.Stat(filepath.Join(folder, "ended")); err != nil {
		t.Errorf("the command got no signal: %v", err)
	}
}

func needsPostgres(t *testing.T) {
	t.Helper()
	servertest.Postgres(t) // skips the test if PostgreSQL is not installed
}
