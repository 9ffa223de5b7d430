package walkthrough

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// repeatedCommands are the commands that show the work of a program in the background. A reader
// repeats them until they show the output of the page. All other commands are typed once.
var repeatedCommands = regexp.MustCompile(`^(bridgectl (status|dead list.*|pending list|gaps list|marks list)|amqp-get .*|grep .* (verifier|receiver)\.log)$`)

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
	// The tests' servers do not wait for the disk, and the doctor would report that.
	database := servertest.StartPostgres(t, &servers.PostgresOptions{
		Config: []string{"fsync = on", "full_page_writes = on", "synchronous_commit = on"}}).URL()
	// The URL ends after the port, as on the page: other tools read a slash differently.
	rabbitmq := servertest.StartRabbitMQ(t, &servers.RabbitMQOptions{Plugins: []string{"rabbitmq_management"}})
	broker := strings.TrimSuffix(rabbitmq.URL(), "/")
	sh := startShell(t, checkout(t), append(program.Environment(), "NO_COLOR=1", "BRIDGE_HTTP_ADDR=127.0.0.1:0"))
	for _, s := range all {
		command := s.command
		switch { // the reader has servers of her own, and so does the test
		case strings.HasPrefix(command, "export BRIDGE_DATABASE_URL="):
			command = "export BRIDGE_DATABASE_URL=" + quote(database)
		case strings.HasPrefix(command, "export BRIDGE_AMQP_URL="):
			command = "export BRIDGE_AMQP_URL=" + quote(broker)
		case strings.HasPrefix(command, "export BRIDGE_MANAGEMENT_URL="):
			command = "export BRIDGE_MANAGEMENT_URL=" + quote(strings.TrimSuffix(rabbitmq.ManagementURL(), "/api"))
		}
		want := 0
		if strings.Contains(command, "timeout ") {
			want = stopped
		}
		var output string
		var code int
		try := func() bool {
			output, code = sh.run(t, command)
			return s.shows(output) && code == want
		}
		said := func() string {
			return fmt.Sprintf("it says\n%s(exit code %d)\nand the page says\n%s\n(exit code %d)", output, code, strings.Join(s.output, "\n"), want)
		}
		if repeatedCommands.MatchString(s.command) {
			servertest.Eventually(t, "$ "+s.command, try, said)
		} else if !try() {
			t.Fatalf("$ %s: %s", s.command, said())
		}
	}
}

// checkout returns a copy of the commands' sources, so that the walk-through leaves nothing in
// this checkout.
func checkout(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	cmd := exec.Command("cp", "-R", "--parents", "bridge", "sender", "verifier", "idempotency", "cmd", "tests/walkthrough/receiver", "go.mod", "go.sum", folder)
	cmd.Dir = "../.."
	if r := program.RunCmd(t, cmd); r.Code != 0 {
		t.Fatalf("no copy: %+v", r)
	}
	// Go builds a package anew in another folder. The page's own builds then find it in Go's cache.
	build := exec.Command("go", "build", "-o", t.TempDir(), "./cmd/verifier", "./cmd/bridgectl", "./cmd/shop", "./tests/walkthrough/receiver")
	build.Dir, build.Env = folder, append(program.Environment(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, output)
	}
	return folder
}

func quote(address string) string { return "'" + strings.ReplaceAll(address, "'", `'\''`) + "'" }
