package cmd_test

import (
	"bytes"
	"database/sql"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// The test types the quick start into an empty folder, with URLs of its own. Our module comes
// from this checkout and all others from the module cache, so no later release can change the
// result.
func TestTheQuickStartRunsAsItStands(t *testing.T) {
	if testing.Short() {
		t.Skip("links a program")
	}
	t.Parallel()
	page, err := os.ReadFile("../../README.md")
	must(t, err)
	_, start, _ := strings.Cut(string(page), "\n## Quick start")
	start, _, _ = strings.Cut(start, "\n## ")
	commands, source := block(t, start, "```\n"), block(t, start, "```go\n")
	if formatted, err := format.Source([]byte(source)); err != nil || !bytes.Equal(formatted, []byte(source)) {
		t.Errorf("the program is not formatted: %v", err)
	}
	checkout, err := filepath.Abs("../..")
	must(t, err)
	graph := exec.Command("go", "mod", "graph") // loads into the cache the go.mod files that go get reads
	graph.Dir = checkout
	if r := program.RunCmd(t, graph); r.Code != 0 {
		t.Fatalf("go mod graph: %+v", r)
	}
	folder, database := t.TempDir(), servertest.PostgresDB(t)
	must(t, os.WriteFile(filepath.Join(folder, "main.go"), []byte(source), 0o600))
	var typed []string
	for line := range strings.Lines(commands) {
		switch line = strings.TrimSpace(line); {
		case strings.HasPrefix(line, "go mod edit -replace github.com/twoqueue/twoqueue=../twoqueue "):
			line = "go mod edit -replace github.com/twoqueue/twoqueue=" + quoted(checkout)
		case line == "# save the program below as main.go":
			line = "cp ../main.go ."
		case strings.HasPrefix(line, "export DATABASE_URL=postgres://"):
			line = "export DATABASE_URL=" + quoted(database) + " AMQP_URL=" + quoted(servertest.Vhost(t))
		case line == "go run .":
			line = "exec " + line // so that a signal reaches no shell
		}
		typed = append(typed, line)
	}
	cmd := exec.Command("bash", "-e", "-c", strings.Join(typed, "\n"))
	cmd.Dir = folder
	cmd.Env = append(program.Environment(), "CGO_ENABLED=0", "GOPROXY=off", "GOSUMDB=off", "GOFLAGS=", "GOWORK=off")
	var group int
	p := program.StartCmd(t, cmd)
	t.Cleanup(func() { // go run leaves its program running
		if group != 0 {
			_ = syscall.Kill(-group, syscall.SIGKILL)
		}
	})
	group = cmd.Process.Pid
	p.Hear("e-mail sent: two apples")
	must(t, syscall.Kill(-group, syscall.SIGINT)) // Ctrl-C
	p.Await()                                     // go run then exits with 1
	db, err := sql.Open("pgx", database)
	must(t, err)
	defer db.Close()
	var orders, emails string
	must(t, db.QueryRowContext(t.Context(), `SELECT (SELECT string_agg(name, ',') FROM orders), (SELECT string_agg(body, ',') FROM emails)`).Scan(&orders, &emails))
	if orders != "two apples" || emails != orders || !strings.Contains(p.Stderr.String(), "verifier stopped") {
		t.Errorf("the orders are %q, the e-mails are %q", orders, emails)
	}
}

// block returns the first code block of a text that begins with fence.
func block(t *testing.T, text, fence string) string {
	t.Helper()
	_, code, found := strings.Cut(text, "\n"+fence)
	code, _, ended := strings.Cut(code, "```\n")
	if !found || !ended {
		t.Fatalf("the quick start has no block %q", fence)
	}
	return code
}

func quoted(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
