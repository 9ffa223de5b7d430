package walkthrough

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

const (
	// patience bounds a command.
	patience = 3 * time.Minute
	// aWhile is what the page promises, on a busy machine: so long may a command that
	// looks at a program in the background show something else.
	aWhile = 30 * time.Second
)

// looks are the commands that show what a program in the background has done. A reader types
// them again. All others are typed once.
var looks = regexp.MustCompile(`^(bridgectl status|bridgectl dead list|amqp-get .*|grep .* verifier\.log)$`)

// stopped is the exit code of timeout when it has ended its command.
const stopped = 124

func TestMain(m *testing.M) { servertest.Main(m) }

func TestTheWalkThroughGoesAsItIsWritten(t *testing.T) {
	text, err := os.ReadFile("../../cmd/bridgectl/WALKTHROUGH.md")
	if err != nil {
		t.Fatal(err)
	}
	all := steps(string(text))
	if len(all) < 10 {
		t.Fatalf("the walk-through has %d commands", len(all))
	}
	// The tests' servers do not wait for the disk, and the doctor would say so.
	database := servertest.StartPostgres(t, &servers.PostgresOptions{
		Config: []string{"fsync = on", "full_page_writes = on", "synchronous_commit = on"}}).URL()
	broker := servertest.Vhost(t)
	sh := startShell(t, checkout(t), append(program.Environment(), "NO_COLOR=1", "BRIDGE_HTTP_ADDR=127.0.0.1:0"))
	for _, s := range all {
		command := s.command
		switch { // the reader has servers, and so have we
		case strings.HasPrefix(command, "export BRIDGE_DATABASE_URL="):
			command = "export BRIDGE_DATABASE_URL=" + quote(database)
		case strings.HasPrefix(command, "export BRIDGE_AMQP_URL="):
			command = "export BRIDGE_AMQP_URL=" + quote(broker)
		}
		want := 0
		if strings.Contains(command, "timeout ") {
			want = stopped
		}
		for began := time.Now(); ; time.Sleep(200 * time.Millisecond) {
			output, code, err := sh.run(command)
			if err != nil {
				t.Fatalf("$ %s\n%s: %v", s.command, output, err)
			}
			if s.shows(output) && code == want {
				break
			}
			if !looks.MatchString(s.command) || time.Since(began) > aWhile {
				t.Fatalf("$ %s\n%s(exit code %d)\nand the page says\n%s\n(exit code %d)", s.command, output, code, strings.Join(s.output, "\n"), want)
			}
		}
	}
}

// checkout is a copy of what the commands are made of, so that nothing is left here.
func checkout(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	for _, part := range []string{"bridge", "sender", "verifier", "idempotency", "cmd"} {
		if err := os.CopyFS(filepath.Join(folder, part), os.DirFS(filepath.Join("../..", part))); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func quote(address string) string { return "'" + strings.ReplaceAll(address, "'", `'\''`) + "'" }
