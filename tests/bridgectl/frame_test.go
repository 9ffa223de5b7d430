package bridgectl_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// Nothing of these is reachable.
var nowhere = []string{"BRIDGE_DATABASE_URL=postgres://user:s3cret@127.0.0.1:1/db", "BRIDGE_AMQP_URL=amqp://user:s3cret@127.0.0.1:1/"}

func TestMisuseIsOneLineAndCode2(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		env  string
		want string
	}{
		{"migrat", "", `bridgectl has no command "migrat"; did you mean migrate? (see bridgectl -h)`},
		{"migrate upp", "", `bridgectl migrate has no command "upp"; did you mean up? (see bridgectl migrate -h)`},
		{"migrate up now", "", `unknown command "now" for "bridgectl migrate up"`},
		{"migrate up --everything", "", "unknown flag: --everything"},
		{"migrate status -o xml", "", `invalid argument "xml" for "-o, --output" flag: "xml" is not usable; give table or json`},
		{"migrate print --database oracle", "", `--database: "oracle" is not known; give one of postgres, mysql, sqlserver, sqlite`},
		{"migrate print", "BRIDGE_DATABASE_URL=", "--database: is not given, and BRIDGE_DATABASE_URL is not set"},
		{"migrate status", "BRIDGE_DATABASE_URL=", "BRIDGE_DATABASE_URL: is not set; name the database"},
		{"topology declare", "BRIDGE_AMQP_URL=", "BRIDGE_AMQP_URL: is not set; name the broker"},
		{"doctor", "BRIDGE_AMQP_URL=", "BRIDGE_AMQP_URL: is not set; name the broker, or examine the database alone"},
		{"doctor", "BRIDGE_DATABASE_URL=", "BRIDGE_DATABASE_URL: is not set; name the database that holds the ledger, or examine the broker alone"},
		{"doctor ledger", "", `invalid argument "ledger" for "bridgectl doctor"`},
		{"doctor", "BRIDGE_MANAGEMENT_URL=ftp://user:s3cret@host", "BRIDGE_MANAGEMENT_URL: it must be http://user:password@host:port"},
		{"doctor", "BRIDGE_MANAGEMENT_URL=http://user:s3cret/x@host", "BRIDGE_MANAGEMENT_URL: it must be http://user:password@host:port"},
		{"doctor", "BRIDGE_MANAGEMENT_URL=http://user:s3cret@host?cacertfile=/nowhere/ca.pem", "BRIDGE_MANAGEMENT_URL: parameters for TLS need https"},
		{"doctor", "BRIDGE_MANAGEMENT_URL=https://user:s3cret@host?cacertfile=/nowhere/ca.pem", "BRIDGE_MANAGEMENT_URL: read cacertfile: open /nowhere/ca.pem"},
		{"topology print", "BRIDGE_QUEU=x", "BRIDGE_QUEU: unknown variable; did you mean BRIDGE_QUEUE?"},
		{"topology print", "BRIDGE_DATABASEURL=s3cret", "BRIDGE_DATABASEURL: unknown variable; did you mean BRIDGE_DATABASE_URL?"},
		{"topology print", "BRIDGE_QUEUE=" + strings.Repeat("q", 201), "BRIDGE_QUEUE: must have 1 to 200 bytes"},
		{"topology print --queue " + strings.Repeat("q", 201), "", "--queue: must have 1 to 200 bytes"},
		{"topology print", "BRIDGE_CLASSIC=ja", `BRIDGE_CLASSIC: "ja" is not usable; give true or false`},
		{"topology print", "BRIDGE_AUDIT=-1", `BRIDGE_AUDIT: "-1" is not usable; give a whole number`},
		{"topology print", "BRIDGE_DATABASE_URL_FILE=/nowhere", "BRIDGE_DATABASE_URL_FILE: is set, and BRIDGE_DATABASE_URL too"},
	} {
		r := withEnv(t, nowhere...).also(c.env).run(strings.Fields(c.args)...)
		if r.Code != 2 || r.Stdout != "" || !strings.HasPrefix(r.Stderr, "bridgectl: "+c.want) || strings.Count(r.Stderr, "\n") != 1 ||
			strings.Contains(r.Stderr, "s3cret") {
			t.Errorf("%s with %q: %+v", c.args, c.env, r)
		}
	}
}

func TestFailureIsOneLineAndCode1(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, want string }{
		{"migrate status", "BRIDGE_DATABASE_URL: open database: database not reachable"},
		{"migrate up", "BRIDGE_DATABASE_URL: open database: database not reachable"},
		{"topology declare", "BRIDGE_AMQP_URL: connect to the broker: broker unavailable"},
	} {
		r := withEnv(t, nowhere...).run(strings.Fields(c.args)...)
		if r.Code != 1 || r.Stdout != "" || !strings.HasPrefix(r.Stderr, "bridgectl: "+c.want) || strings.Count(r.Stderr, "\n") != 1 ||
			!strings.Contains(r.Stderr, "; see that ") || strings.Contains(r.Stderr, "s3cret") {
			t.Errorf("%s: %+v", c.args, r)
		}
	}
}

// Who runs the tool where a verifier runs has the verifier's variables set.
func TestTheVerifiersVariablesAreLeftAlone(t *testing.T) {
	t.Parallel()
	help := program.Run(t, "verifier", "-help").Stdout
	variables := regexp.MustCompile(`(?m)^  (BRIDGE_[A-Z_]+)(?: \(default (.*)\))?$`)
	own := variables.FindAllStringSubmatch(withEnv(t).must("-h"), -1)
	defaults := make(map[string]string)
	for _, match := range own {
		defaults[match[1]] = match[2]
	}
	b, shared := withEnv(t), 0
	for _, match := range variables.FindAllStringSubmatch(string(help), -1) {
		name, value := match[1], match[2]
		if there, ok := defaults[name]; !ok {
			b = b.also(name + "=whatever it is")
		} else if shared++; there != value {
			t.Errorf("the default of %s is %q, the verifier's is %q", name, there, value)
		}
	}
	if len(b.env) < 10 || shared < 6 {
		t.Fatalf("%d of the verifier's variables are found, %d of them shared:\n%s", len(b.env)+shared, shared, help)
	}
	b.must("topology", "print")

	// And the other way round: it refuses what it does not know.
	r, _ := withEnv(t, "BRIDGE_MANAGEMENT_URL=http://host", "BRIDGE_MANAGEMENT_URL_FILE=", "BRIDGE_INBOX_URL=sqlite:x", "BRIDGE_INBOX_URL_FILE=").
		command("verifier").CombinedOutput()
	if !strings.HasPrefix(string(r), "verifier: BRIDGE_DATABASE_URL: is not set") {
		t.Errorf("the verifier does not leave the tool's variables alone: %s", r)
	}
}

func TestHelpAndCompletionNeedNoEnvironment(t *testing.T) {
	t.Parallel()
	b := withEnv(t, "BRIDGE_CLASSIC=ja", "BRIDGE_QUEU=x")
	help := b.must("-h")
	for _, part := range []string{"doctor ", "migrate ", "topology ", "completion ", "-o, --output table|json", "3  the doctor has found an error"} {
		if !strings.Contains(help, part) {
			t.Errorf("no %q in the help:\n%s", part, help)
		}
	}
	if b.must() != help || b.must("help") != help {
		t.Error("without a command, and with the command help, it is another help")
	}
	for line := range strings.Lines(help) {
		if len(line) > 90 {
			t.Errorf("a long line: %s", line)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if script := b.must("completion", shell); !strings.Contains(script, "bridgectl") {
			t.Errorf("%s: %s", shell, script)
		}
	}
	for _, c := range []struct {
		words []string
		want  []string
	}{
		{[]string{"migrate", ""}, []string{"print", "status", "up"}},
		{[]string{"doctor", ""}, []string{"database", "broker"}},
		{[]string{"topology", "print", "-o", ""}, []string{"table", "json"}},
		{[]string{"migrate", "print", "--database", ""}, []string{"postgres", "mysql", "sqlserver", "sqlite"}},
	} {
		r := b.run(append([]string{"__complete"}, c.words...)...)
		for _, want := range c.want {
			if !regexp.MustCompile(`(?m)^`+want+`(\t|$)`).MatchString(r.Stdout) || r.Code != 0 {
				t.Errorf("%v does not offer %s: %+v", c.words, want, r)
			}
		}
	}
}

func TestURLsComeFromFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "url")
	writeFile(t, path, "sqlite:"+filepath.Join(t.TempDir(), "ledger.db")+"\n")
	withEnv(t, "BRIDGE_DATABASE_URL_FILE="+path).must("migrate", "up")
}

func TestTopologyIsDeclaredAndPrinted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.tool("BRIDGE_AUDIT=7", "BRIDGE_QUEUE=other")
	text := b.must("topology", "declare", "--queue", "shop")
	for _, queue := range []string{"shop ", "shop.waiting ", "shop.dead ", "shop.dropped "} {
		if !strings.Contains(text, "\n"+queue) {
			t.Errorf("no %s in\n%s", queue, text)
		}
	}
	if again := b.must("topology", "declare", "--queue", "shop"); again != text {
		t.Errorf("the second time it says\n%s", again)
	}
	r := b.also("BRIDGE_CLASSIC=true").run("topology", "declare", "--queue", "shop")
	if r.Code != 1 || !strings.Contains(r.Stderr, `queue "shop" exists with another x-`) {
		t.Errorf("another type: %+v", r)
	}
}

// What print prints as JSON can be imported, and is what declare would have made.
func TestRabbitMQImportsWhatTopologyPrints(t *testing.T) {
	t.Parallel()
	for _, env := range [][]string{{"BRIDGE_AUDIT=7"}, {"BRIDGE_CLASSIC=true"}} {
		w := newWorld(t)
		b := w.tool(env...)
		text := b.must("topology", "print", "-o", "json")
		if !json.Valid([]byte(text)) {
			t.Fatalf("not JSON:\n%s", text)
		}
		path := filepath.Join(t.TempDir(), "queues.json")
		writeFile(t, path, text)
		if output, err := servertest.RabbitMQ(t).Ctl(t.Context(), "import_definitions", path); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		d, _ := b.examine("broker")
		d.expect(t, "arguments of twoqueue", "ok", "")
		d.expect(t, "arguments of twoqueue.waiting", "ok", "")
		d.expect(t, "arguments of twoqueue.dead", "ok", "")
		b.must("topology", "declare") // which compares all arguments
	}
}

// Colour is for a terminal whose user wants it.
func TestColorIsForTerminals(t *testing.T) {
	t.Parallel()
	b := withEnv(t, "BRIDGE_DATABASE_URL=sqlite:"+filepath.Join(t.TempDir(), "ledger.db"), "TERM=xterm")
	b.must("migrate", "up")
	onTerminal := func(b *tool) string {
		t.Helper()
		script, err := exec.LookPath("script")
		if err != nil {
			t.Fatalf("script, of Debian's essential package bsdutils: %v", err)
		}
		cmd := b.command("bridgectl")
		cmd.Path, cmd.Args = script, []string{"script", "-qec", program.Path(t, "bridgectl") + " doctor database", "/dev/null"}
		var out bytes.Buffer
		cmd.Stdout = &out
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v\n%s", err, &out)
		}
		return out.String()
	}
	if text := onTerminal(b); !strings.Contains(text, "\x1b[32mok\x1b[0m") {
		t.Errorf("no colour on a terminal:\n%s", text)
	}
	for _, env := range []string{"NO_COLOR=1", "TERM=dumb"} {
		if text := onTerminal(b.also(env)); strings.Contains(text, "\x1b") || !strings.Contains(text, "proof") {
			t.Errorf("colour with %s:\n%s", env, text)
		}
	}
}

func TestAnInterruptEndsIt(t *testing.T) {
	t.Parallel()
	silent := listenSilently(t)
	b := withEnv(t, "BRIDGE_DATABASE_URL=postgres://user:s3cret@"+silent.address+"/db?sslmode=disable")
	p := b.start("migrate", "status")
	silent.awaitClient(t)
	p.Signal(os.Interrupt)
	if code := p.Await(); code != 1 || p.Stderr.String() != "bridgectl: interrupted\n" {
		t.Errorf("exit code %d, stderr %q", code, p.Stderr.String())
	}
}
