package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestMain(m *testing.M) { servertest.Main(m) }

// A failed test must fail the whole run: the command's exit code is together's. The command finds the
// servers, and its temporary files are gone at the end.
func TestACommandFindsTheServersAndItsExitCodeIsOurs(t *testing.T) {
	servertest.Postgres(t) // skips the test if PostgreSQL is not installed
	folder, out := t.TempDir(), t.TempDir()
	for _, path := range []string{folder, filepath.Dir(folder)} {
		if err := os.Chmod(path, 0o755); err != nil { // for the server's account
			t.Fatal(err)
		}
	}
	t.Setenv("TMPDIR", folder)
	t.Setenv("OUT", out)
	script := `touch "$TMPDIR/a_test_was_here"; echo "$` + servers.SharedVariable + `" >"$OUT/shared"; exit 3`
	code, err := together(t.Context(), []string{"postgres"}, []string{"sh", "-c", script})
	if err != nil || code != 3 {
		t.Fatalf("exit code %d, %v", code, err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	text, err := os.ReadFile(filepath.Join(out, "shared"))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(servers.SharedVariable, string(text))
	shared, err := servers.FindShared()
	if err != nil || shared.Postgres == nil || shared.Postgres.Port == 0 || shared.RabbitMQ != nil {
		t.Fatalf("the shared servers are %s, %v", text, err)
	}
}
