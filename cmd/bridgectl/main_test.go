package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/cmd/internal/commandtest"
)

// The other commands take -help. Cobra alone would complain here about a shorthand flag 'e'.
func TestHelpMayBeAskedForWithOneDash(t *testing.T) {
	for _, args := range []string{"-help", "--help", "-h", "dead -help", "dead replay --all -help"} {
		code, stdout, stderr := commandtest.Run(t, run, strings.Fields(args)...)
		if code != exitDone || !strings.Contains(stdout, "\nUsage:\n") || stderr != "" {
			t.Errorf("%s: exit code %d, %q%q", args, code, stdout, stderr)
		}
	}
}

// No server answers at these addresses.
const (
	awayDatabase = "postgres://user:s3cret@127.0.0.1:1/db"
	awayBroker   = "amqp://user:s3cret@127.0.0.1:1/"
)

func away(t *testing.T, env ...string) {
	t.Helper()
	commandtest.Set(t, append([]string{"BRIDGE_DATABASE_URL=" + awayDatabase, "BRIDGE_AMQP_URL=" + awayBroker}, env...)...)
}

// called runs the program with variables, each NAME=value. Servers that env does not name are
// unreachable.
func called(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	away(t, env...)
	code, stdout, stderr = commandtest.Run(t, run, args...)
	if strings.Contains(stdout+stderr, "s3cret") {
		t.Errorf("bridgectl %q gives the password away: %s%s", args, stdout, stderr)
	}
	return code, stdout, stderr
}

// A command that contacts no server accepts URLs without TLS. The others refuse them.
func TestPrintingNeedsNoTLS(t *testing.T) {
	far := []string{"BRIDGE_DATABASE_URL=mysql://user:s3cret@db.example/shop", "BRIDGE_AMQP_URL=amqp://user:s3cret@mq.example/orders",
		"BRIDGE_MANAGEMENT_URL=http://mq.example:15672", "BRIDGE_INBOX_URL=mysql://user:s3cret@db.example/post"}
	for args, want := range map[string]string{
		"topology print -o json": `"vhost": "orders"`,
		"migrate print --inbox":  "CREATE TABLE",
		"grants migrate":         "ON `shop`.*",
	} {
		if code, stdout, stderr := called(t, far, strings.Fields(args)...); code != exitDone || !strings.Contains(stdout, want) {
			t.Errorf("%s: exit code %d, %s%s", args, code, stdout, stderr)
		}
	}
	for _, args := range []string{"topology declare", "migrate status", "doctor"} {
		if code, _, stderr := called(t, far, strings.Fields(args)...); code != exitMisused || !strings.Contains(stderr, "BRIDGE_INSECURE=true") {
			t.Errorf("%s: exit code %d, %s", args, code, stderr)
		}
	}
}

// Ledger and inbox of one database may have a schema each.
func TestGrantsNameTheSchemaOfEachPart(t *testing.T) {
	const database = "BRIDGE_DATABASE_URL=postgres://u@db.example/shop?sslmode=verify-full"
	schemas := []string{database, "BRIDGE_SCHEMA=messaging", "BRIDGE_INBOX_SCHEMA=inbox"}
	with := func(inbox string) []string { return append(slices.Clone(schemas), "BRIDGE_INBOX_URL="+inbox) }
	for _, c := range []struct {
		args      string
		env       []string
		want, not []string
	}{
		{"operator", schemas, []string{`USAGE ON SCHEMA "messaging" TO`, `USAGE ON SCHEMA "inbox" TO`, `SELECT ON "inbox".bridge_inbox TO`, `ON "inbox".bridge_inbox_pending`, `ON "inbox".bridge_inbox_version`,
			`ON "inbox".bridge_mark`, `ON "inbox".bridge_kept`, `DELETE ON "messaging".bridge_ledger`, `EXECUTE ON FUNCTION "messaging".bridge_committed`}, []string{`"messaging".bridge_inbox`}},
		{"verifier", schemas, []string{`USAGE ON SCHEMA "messaging"`}, []string{"inbox"}},
		{"receiver", schemas, []string{`USAGE ON SCHEMA "inbox"`}, []string{"messaging"}},
		{"receiver --sends", schemas, []string{`USAGE ON SCHEMA "inbox"`, `USAGE ON SCHEMA "messaging"`, `INSERT ON "messaging".bridge_ledger`}, nil},
		{"migrate", schemas, []string{`USAGE ON SCHEMA "messaging"`, `USAGE ON SCHEMA "inbox"`, `CREATE ON SCHEMA "messaging"`, `CREATE ON SCHEMA "inbox"`}, nil},
		{"migrate", with("postgres://other@db.example/shop"), []string{`CREATE ON SCHEMA "messaging"`, `CREATE ON SCHEMA "inbox"`}, nil},
		{"migrate", with("postgres://u@db.example/post"), []string{`CREATE ON SCHEMA "messaging"`, "--inbox"}, []string{`"inbox"`}},
		{"migrate --inbox", with("postgres://u@db.example/post"), []string{`CREATE ON SCHEMA "inbox"`}, []string{"messaging", "--inbox"}},
		{"operator", with("postgres://u@db.example/post"), []string{`USAGE ON SCHEMA "messaging"`, `DELETE ON "messaging".bridge_ledger`, "EXECUTE ON FUNCTION", "--inbox"}, []string{`"inbox"`, "bridge_mark"}},
		{"operator --inbox", with("postgres://u@db.example/post"), []string{`USAGE ON SCHEMA "inbox"`, `SELECT ON "inbox".bridge_inbox TO`, "bridge_mark"}, []string{"messaging", "bridge_ledger", "EXECUTE"}},
		{"operator --inbox", schemas, []string{`USAGE ON SCHEMA "inbox"`}, []string{"messaging"}},
		{"receiver", []string{database, "BRIDGE_SCHEMA=messaging", "BRIDGE_INBOX_URL=mysql://u@db.example/post?tls=true"}, []string{"GRANT SELECT, INSERT, DELETE ON bridge_inbox TO 'twoqueue_receiver'@'%';"}, []string{"USAGE"}},
		{"receiver --sends", with("postgres://u@db.example/post"), []string{`INSERT ON "messaging".bridge_ledger`, `SELECT, INSERT, DELETE ON "inbox".bridge_inbox TO`}, nil},
		{"gateway", schemas, []string{`SELECT, INSERT, UPDATE, DELETE ON "inbox".email_gateway TO`, `ON "inbox".bridge_inbox_pending`}, nil},
		{"verifier --inbox", schemas, []string{"uses no table of the inbox"}, []string{"GRANT"}},
		{"migrate --schema all", schemas, []string{`CREATE ON SCHEMA "all"`}, []string{"messaging", "inbox"}},
		{"migrate --database sqlserver", schemas, []string{"GRANT CREATE TABLE TO", "ALTER, SELECT, INSERT, UPDATE ON SCHEMA::[messaging]", "ALTER, SELECT, INSERT, UPDATE ON SCHEMA::[inbox]"}, nil},
	} {
		t.Run(c.args, func(t *testing.T) {
			code, stdout, stderr := called(t, c.env, strings.Fields("grants "+c.args)...)
			if code != exitDone {
				t.Errorf("exit code %d, %s", code, stderr)
			}
			for _, want := range c.want {
				if strings.Count(stdout, want) != 1 {
					t.Errorf("must say %q once:\n%s", want, stdout)
				}
			}
			for _, not := range c.not {
				if strings.Contains(stdout, not) {
					t.Errorf("must not say %q:\n%s", not, stdout)
				}
			}
		})
	}
}

func TestEachErrorIsOneLineAndItsExitCode(t *testing.T) {
	for _, c := range []struct {
		args, env string
		code      int
		want      string
	}{
		{"migrat", "", exitMisused, `bridgectl has no command "migrat"; did you mean migrate? (see bridgectl -h)`},
		{"migrate upp", "", exitMisused, `bridgectl migrate has no command "upp"; did you mean up? (see bridgectl migrate -h)`},
		{"migrate up now", "", exitMisused, `unknown command "now" for "bridgectl migrate up"`},
		{"migrate up --everything", "", exitMisused, "unknown flag: --everything"},
		{"migrate status -o xml", "", exitMisused, `invalid argument "xml" for "-o, --output" flag: "xml" is not usable; give table or json`},
		{"migrate print --database oracle", "", exitMisused, `--database: "oracle" is not known; give one of postgres, mysql, sqlserver, sqlite`},
		{"migrate print --database sqlite --from 5", "", exitMisused, "there is no version 5"},
		{"migrate print", "BRIDGE_DATABASE_URL=", exitMisused, "--database: is not given, and BRIDGE_DATABASE_URL is not set"},
		{"migrate status", "BRIDGE_DATABASE_URL=", exitMisused, "BRIDGE_DATABASE_URL: is not set; name the database"},
		{"migrate status", "BRIDGE_DATABASE_URL=oracle://u:s3cret@h/d", exitMisused, "BRIDGE_DATABASE_URL: open database: not a database URL: it must start with"},
		{"migrate status", "", exitFailed, "BRIDGE_DATABASE_URL: open database: database not reachable"},
		{"topology declare", "BRIDGE_AMQP_URL=", exitMisused, "BRIDGE_AMQP_URL: is not set; name the broker"},
		{"topology declare", "BRIDGE_AMQP_URL=http://u:s3cret@h/", exitMisused, "BRIDGE_AMQP_URL: broker URL is not usable: it is not of the form"},
		{"topology declare", "", exitFailed, "BRIDGE_AMQP_URL: connect to the broker at 127.0.0.1:1: broker unavailable"},
		{"topology print", "BRIDGE_QUEU=x", exitMisused, "BRIDGE_QUEU: unknown variable; did you mean BRIDGE_QUEUE?"},
		{"topology print", "BRIDGE_QUEUE=" + strings.Repeat("q", 201), exitMisused, "BRIDGE_QUEUE: must have 1 to 200 bytes"},
		{"topology print --queue " + strings.Repeat("q", 201), "", exitMisused, "--queue: must have 1 to 200 bytes"},
		{"topology print", "BRIDGE_DATABASE_URL_FILE=/nowhere", exitMisused, "BRIDGE_DATABASE_URL_FILE: is set, and BRIDGE_DATABASE_URL too"},
		{"status", "BRIDGE_DATABASE_URL= BRIDGE_AMQP_URL=", exitMisused, "no server is named"},
		{"status", "BRIDGE_MANAGEMENT_URL=nonsense", exitMisused, "BRIDGE_MANAGEMENT_URL: it must be http://user:password@host:port"},
		{"doctor", "BRIDGE_AMQP_URL=", exitMisused, "BRIDGE_AMQP_URL: is not set; name the broker, or examine the database alone"},
		{"doctor", "BRIDGE_DATABASE_URL=", exitMisused, "BRIDGE_DATABASE_URL: is not set; name the database that holds the ledger, or examine the broker alone"},
		{"doctor ledger", "", exitMisused, `invalid argument "ledger" for "bridgectl doctor"`},
		{"doctor", "BRIDGE_MANAGEMENT_URL=http://user:s3cret/x@host", exitMisused, "BRIDGE_MANAGEMENT_URL: it must be http://user:password@host:port"},
		{"doctor", "BRIDGE_MANAGEMENT_URL=http://user:s3cret@localhost?cacertfile=/nowhere/ca.pem", exitMisused, "BRIDGE_MANAGEMENT_URL: parameters for TLS need https"},
		{"doctor", "BRIDGE_MANAGEMENT_URL=https://user:s3cret@host?cacertfile=/nowhere/ca.pem", exitMisused, "BRIDGE_MANAGEMENT_URL: read cacertfile: open /nowhere/ca.pem"},
		{"message x", "", exitMisused, `"x" is not a message ID`},
		{"message 018f0000-0000-7000-8000-000000000000", "BRIDGE_DATABASE_URL= BRIDGE_AMQP_URL=", exitMisused, "no server is named"},
		{"message 018f0000-0000-7000-8000-000000000000", "BRIDGE_MANAGEMENT_URL=nonsense", exitMisused, "BRIDGE_MANAGEMENT_URL: it must be http://user:password@host:port"},
		{"orphans sweep --older-than=59m", "", exitMisused, "--older-than: must be at least 1h0m0s"},
		{"dead show", "", exitMisused, "requires at least 1 arg"},
		{"dead list x", "", exitMisused, "unknown command"},
		{"dead list --limit=0", "", exitMisused, "--limit: must be positive"},
		{"dead list --reason=unroutible", "", exitMisused, `--reason: "unroutible" is not usable; give some of malformed, foreign,`},
		{"dead list --queue=emails --reason=failed,too-old", "", exitFailed, "BRIDGE_AMQP_URL: connect to the broker"},
		{"dead list --verdict=maybe", "", exitMisused, `--verdict: "maybe" is not usable; give committed or unknown`},
		{"dead list --target=late", "", exitMisused, `--target: "late" is not EXCHANGE:KEY; write :late`},
		{"dead list --older-than=-1s", "", exitMisused, "--older-than"},
		{"dead replay", "", exitMisused, "no message is selected"},
		{"dead replay --all", "", exitMisused, "confirm with --yes"},
		{"dead replay --all --yes --to=late", "", exitMisused, `--to: "late" is not EXCHANGE:KEY; write :late`},
		{"dead replay --all --yes --to=:", "", exitMisused, "--to: names neither an exchange nor a queue"},
		{"dead discard --yes", "", exitMisused, "no message is selected"},
		{"dead discard 1", "", exitMisused, "confirm with --yes"},
	} {
		t.Run(c.args+" "+c.env, func(t *testing.T) {
			away(t, strings.Fields(c.env)...)
			line := commandtest.Refused(t, run, "bridgectl", c.code, strings.Fields(c.args)...)
			if !strings.Contains(line, c.want) || (c.code == exitFailed) != strings.Contains(line, "; check that ") {
				t.Errorf("it says %q", line)
			}
		})
	}
}

// Where a verifier runs, the verifier's variables are set. Bridgectl must ignore the ones that it
// does not have.
func TestTheVerifiersVariablesAreLeftAlone(t *testing.T) {
	readme, err := os.ReadFile("../verifier/README.md") // a test of the verifier compares its table with the program
	if err != nil {
		t.Fatal(err)
	}
	_, help, _ := called(t, nil, "-h")
	own := make(map[string]string)
	for _, match := range regexp.MustCompile(`(?m)^  (BRIDGE_[A-Z_]+)(?: \(default (.*)\))?$`).FindAllStringSubmatch(help, -1) {
		own[match[1]] = match[2]
	}
	shared, others := 0, []string{"BRIDGE_AMQP_URL=" + awayBroker}
	for _, match := range regexp.MustCompile("(?m)^\\| `(BRIDGE_[A-Z_]+)` \\| (?:`([^`]*)`)? \\|").FindAllStringSubmatch(string(readme), -1) {
		name, value := match[1], match[2]
		if there, ok := own[name]; !ok {
			others = append(others, name+"=any value")
		} else if shared++; there != value {
			t.Errorf("the default of %s is %q, the verifier's is %q", name, there, value)
		}
	}
	if len(others) < 10 || shared < 6 {
		t.Fatalf("%d of the verifier's variables are shared, %d are not", shared, len(others))
	}
	if code, _, stderr := called(t, others, "topology", "print"); code != exitDone {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}

func TestHelpAndCompletionNeedNoEnvironment(t *testing.T) {
	t.Setenv("BRIDGE_CLASSIC", "ja")
	_, help, _ := called(t, nil, "-h")
	for _, args := range [][]string{{}, {"help"}} {
		if _, other, _ := called(t, nil, args...); other != help || !strings.Contains(help, "3  the doctor has found an error") {
			t.Errorf("the help of %q is\n%s", args, other)
		}
	}
	if _, dead, _ := called(t, nil, "dead", "list", "-h"); strings.Count(dead, "--queue") != 1 || !strings.Contains(dead, "NAME.dead") {
		t.Errorf("the help of dead list does not say which dead queue --queue names\n%s", dead)
	}
	for words, want := range map[string][]string{
		"migrate":                  {"print", "status", "up"},
		"doctor":                   {"database", "broker"},
		"topology print -o":        {"table", "json"},
		"migrate print --database": {"postgres", "mysql", "sqlserver", "sqlite"},
	} {
		_, offered, _ := called(t, nil, append(append([]string{"__complete"}, strings.Fields(words)...), "")...)
		for _, word := range want {
			if !regexp.MustCompile(`(?m)^` + word + `(\t|$)`).MatchString(offered) {
				t.Errorf("%s: %s is not offered: %q", words, word, offered)
			}
		}
	}
}

// The database part of the doctor needs only a file with the ledger's tables.
func TestTheDoctorAndTheStatusShowPresentAndMissingParts(t *testing.T) {
	file := []string{"BRIDGE_DATABASE_URL=sqlite:" + filepath.Join(t.TempDir(), "ledger.db")}
	if code, stdout, _ := called(t, file, "doctor", "database"); code != exitUnwell || !strings.Contains(stdout, "error    connection") {
		t.Errorf("without a file: exit code %d\n%s", code, stdout)
	}
	_, made, _ := called(t, file, "migrate", "up")
	identity := regexp.MustCompile(`[0-9a-f-]{36}`).FindString(made)
	code, stdout, _ := called(t, file, "doctor", "database")
	if code != exitDone || !strings.HasPrefix(stdout, "Database (sqlite)\n  ok       connection") || strings.Contains(stdout, "\x1b") ||
		!strings.Contains(stdout, "\nno errors, no warnings, 0 unknown, ") || !strings.Contains(stdout, "ok       proof") {
		t.Errorf("a healthy file: exit code %d\n%s", code, stdout)
	}
	code, stdout, _ = called(t, append(file, "BRIDGE_INBOX_URL"+strings.TrimPrefix(file[0], "BRIDGE_DATABASE_URL")), "doctor", "database")
	if code != exitUnwell || !strings.Contains(stdout, "the tables of the inbox are missing") {
		t.Errorf("without an inbox: exit code %d\n%s", code, stdout)
	}
	code, stdout, stderr := called(t, file, "status")
	if code != exitFailed || stderr != "" || !strings.Contains(stdout, "failed: BRIDGE_AMQP_URL: connect to the broker") || !strings.Contains(stdout, identity) {
		t.Errorf("status without a broker: exit code %d\n%s%s", code, stdout, stderr)
	}
	if failed, ledger := strings.Index(stdout, "failed:"), strings.Index(stdout, identity); failed > ledger {
		t.Errorf("the failure is not printed before the ledger\n%s", stdout)
	}
	inbox := append(file, "BRIDGE_INBOX_URL"+strings.TrimPrefix(file[0], "BRIDGE_DATABASE_URL"))
	called(t, inbox, "migrate", "up", "--inbox")
	code, stdout, stderr = called(t, inbox, "message", "018f0000-0000-7000-8000-000000000000")
	if code != exitFailed || stderr != "" || !strings.Contains(stdout, "\nfailed: BRIDGE_AMQP_URL: connect to the broker") {
		t.Errorf("message without a broker: exit code %d\n%s%s", code, stdout, stderr)
	}
	for _, line := range []string{`ledger +no row, and none can come`, `queues +not known`, `inbox +not in it`} {
		if !regexp.MustCompile("(?m)^" + line + "$").MatchString(stdout) {
			t.Errorf("message says no %q\n%s", line, stdout)
		}
	}
	for _, address := range []string{awayDatabase, "postgres://user:s3cret/x@host/db"} {
		code, stdout, _ := called(t, []string{"BRIDGE_DATABASE_URL=" + address}, "doctor", "database")
		if code != exitUnwell || !strings.Contains(stdout, "error    connection") || !strings.Contains(stdout, "BRIDGE_DATABASE_URL") {
			t.Errorf("%s: exit code %d\n%s", address, code, stdout)
		}
	}
}

// If the login may not see an answer, the output says so instead of 'none'.
func TestUnseenFactsAreReportedAsUnknown(t *testing.T) {
	held := func(held *int64) string { return (&messageFacts{Queues: map[string]int{}, Held: held}).onWayText() }
	shown := func(v view) string {
		var text strings.Builder
		v.write(&page{w: &text})
		return text.String()
	}
	open := &ledgerStatus{Open: []inspect.Holder{{Session: "7"}}}
	for says, text := range map[string]string{
		`\s-\n$`: shown(&statusFacts{Ledger: &ledgerStatus{}}),
		`OPEN is unknown: the login may not see other sessions`: shown(&statusFacts{Ledger: &ledgerStatus{unseen: true}}),
		`\s0\n$`:                shown(&statusFacts{Ledger: &ledgerStatus{Open: []inspect.Holder{}}}),
		`\n- +7 +- +- +- +-\n$`: shown(&statusFacts{Ledger: open}),
		`^not looked for; 0 ready; verifiers hold 8, perhaps this one$`:                        held(new(int64(8))),
		`^not looked for; 0 ready; verifiers hold none$`:                                       held(new(int64)),
		`^not looked for; 0 ready; the number that verifiers hold needs BRIDGE_MANAGEMENT_URL`: held(nil),
	} {
		if !regexp.MustCompile(says).MatchString(text) {
			t.Errorf("%q is not %s", text, says)
		}
	}
}

func TestMigrate(t *testing.T) {
	away(t)
	commandtest.Migrates(t, run, "bridgectl", "BRIDGE_DATABASE_URL", exitFailed, "migrate", "up")
}
