package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/commandtest"
	"github.com/twoqueue/twoqueue/cmd/internal/environment"
	"github.com/twoqueue/twoqueue/verifier"
	"github.com/twoqueue/twoqueue/verifier/ops"
)

// minimal sets only the required variables.
func minimal(t *testing.T) {
	t.Helper()
	commandtest.Environment(t, prefix, "BRIDGE_DATABASE_URL=sqlite:/nowhere/ledger.db", "BRIDGE_AMQP_URL=amqp://user:s3cret@127.0.0.1:1/",
		"BRIDGE_HTTP_ADDR=127.0.0.1:0", "BRIDGE_ALLOW=:emails")
}

func outcome(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return commandtest.Run(t, run, args...)
}

// refused runs the program, which must end with one line that begins with want.
func refused(t *testing.T, code int, want string, args ...string) (line string) {
	t.Helper()
	if line = commandtest.Refused(t, run, "verifier", code, args...); !strings.HasPrefix(line, want) {
		t.Errorf("it says %q, not %q", line, want)
	}
	return line
}

// migrated returns the URL of a SQLite file with the tables.
func migrated(t *testing.T) string {
	t.Helper()
	minimal(t)
	address := "sqlite:" + filepath.Join(t.TempDir(), "ledger.db")
	t.Setenv("BRIDGE_DATABASE_URL", address)
	_, first, _ := outcome(t, "-migrate")
	code, again, stderr := outcome(t, "-migrate")
	if code != exitDone || again != first || !strings.Contains(again, "the ledger's identity is ") || stderr != "" {
		t.Fatalf("exit code %d, first %q, then %q, %q", code, first, again, stderr)
	}
	return address
}

func TestDefaultsAndValues(t *testing.T) {
	minimal(t)
	c, err := load(false)
	if err != nil {
		t.Fatal(err)
	}
	got := c.options(nil)
	want := &verifier.Options{
		Topology: bridge.Topology{Queue: "twoqueue"}, Prefetch: 3000, MaxBytes: 256 << 20, Patience: 2 * time.Second,
		HandBack: 10 * time.Minute, Settlers: 16, Unroutable: time.Minute, Copies: 10, Allow: []verifier.Allow{{RoutingKey: "emails"}},
		ConfirmTimeout: 10 * time.Second, SweepAge: 7 * 24 * time.Hour, Drain: 10 * time.Second, ExplainAfter: 10 * time.Second,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("defaults\n got %+v\nwant %+v", got, want)
	}
	for name, value := range map[string]string{
		"QUEUE": "q", "EXCHANGE": "q.stage", "CLASSIC": "true", "PREFETCH": "10", "MAX_BYTES": "5", "PATIENCE": "5s",
		"ORDERED_SHARDS": "12", "HOLD_KEYS": "true",
		"HAND_BACK": "6m", "SETTLERS": "2", "ALLOW": ":emails,orders:eu.*, x:a:b", "UNROUTABLE": "8s",
		"CONFIRM_TIMEOUT": "9s", "COPIES": "3", "KEEP_USER_ID": "1", "AUDIT": "70000", "SWEEP_AGE": "never", "DRAIN": "11s", "LOG_LEVEL": "warn", "LOG_FORMAT": "json",
		"OWN_TABLE": "shop.orders.id", "OWN_TABLE_CANARY": "INSERT INTO shop.orders (id) VALUES ($id)", "EXPLAIN_AFTER": "never", "HTTP_ADDR": "none", "STATUS_ADDR": "127.0.0.1:0", "PPROF_ADDR": ":6060", "STATUS_HOSTS": "verifier.example, ::1", "SAMPLE_INTERVAL": "1m",
		"TEST_ANYTHING": "ignored", "MANAGEMENT_URL": "the tool's", "INBOX_URL": "the tool's",
	} {
		t.Setenv(prefix+"_"+name, value)
	}
	if c, err = load(false); err != nil {
		t.Fatal(err)
	}
	want = &verifier.Options{
		Topology: bridge.Topology{Queue: "q", Exchange: "q.stage", Classic: true, Audit: 70000, OrderedShards: 12}, HoldKeys: true, Prefetch: 10, MaxBytes: 5, Patience: 5 * time.Second,
		HandBack: 6 * time.Minute, Settlers: 2,
		Allow:      []verifier.Allow{{RoutingKey: "emails"}, {Exchange: "orders", RoutingKey: "eu.*"}, {Exchange: "x", RoutingKey: "a:b"}},
		Unroutable: 8 * time.Second, Copies: 3, ConfirmTimeout: 9 * time.Second, KeepUserID: true, SweepAge: -1, Drain: 11 * time.Second,
	}
	if got := c.options(nil); !reflect.DeepEqual(got, want) {
		t.Errorf("values\n got %+v\nwant %+v", got, want)
	}
	if c.Pprof.Addr != "127.0.0.1:6060" || !slices.Equal(c.Status.Hosts, []string{"verifier.example", "::1"}) {
		t.Errorf("addresses %+v, %+v", c.Status, c.Pprof)
	}
	if c.OwnTable != "shop.orders.id" {
		t.Errorf("own table %q", c.OwnTable)
	}
	if slog.Level(c.Log.Level) != slog.LevelWarn || c.Log.Format != "json" {
		t.Errorf("log %+v", c.Log)
	}
}

func TestBadConfiguration(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"BRIDGE_DATABASE_URL", "", "BRIDGE_DATABASE_URL: is not set"},
		{"BRIDGE_AMQP_URL", "", "BRIDGE_AMQP_URL: is not set"},
		{"BRIDGE_PREFETSH", "1", "BRIDGE_PREFETSH: unknown variable; did you mean BRIDGE_PREFETCH?"},
		{"BRIDGE_QUEUE", "", "BRIDGE_QUEUE: must have 1 to 200 bytes"},
		{"BRIDGE_DATABASE_URL", "postgres://u:s3cret@db.example/shop?sslmode=require", "BRIDGE_DATABASE_URL: the URL allows a connection to db.example without TLS"},
		{"BRIDGE_AMQP_URL", "amqp://u:s3cret@127.0.0.1,mq.example/", "BRIDGE_AMQP_URL: the URL allows a connection to mq.example without TLS"},
		{"BRIDGE_EXCHANGE", "amq.direct", "BRIDGE_EXCHANGE: begins with amq., which RabbitMQ reserves"},
		{"BRIDGE_PREFETCH", "many", `BRIDGE_PREFETCH: "many" is not usable; give a whole number from 1 to 65535`},
		{"BRIDGE_PREFETCH", "0", "BRIDGE_PREFETCH: "},
		{"BRIDGE_PREFETCH", "65536", "BRIDGE_PREFETCH: "},
		{"BRIDGE_MAX_BYTES", "0", `BRIDGE_MAX_BYTES: "0" is not usable; give a positive number of bytes`},
		{"BRIDGE_DRAIN", "10", `BRIDGE_DRAIN: "10" is not usable; give a positive duration such as`},
		{"BRIDGE_AUDIT", "-1", `BRIDGE_AUDIT: "-1" is not usable; give a whole number from 0 to 1000000000`},
		{"BRIDGE_AUDIT", "1000000001", "BRIDGE_AUDIT: "},
		{"BRIDGE_ORDERED_SHARDS", "257", `BRIDGE_ORDERED_SHARDS: "257" is not usable; give a whole number from 0 to 256`},
		{"BRIDGE_SWEEP_AGE", "59m", `BRIDGE_SWEEP_AGE: "59m" is not usable; give a duration of at least 1h such as 168h, or never`},
		{"BRIDGE_DATABASE_URL_FILE", "/nowhere/s3cret", "BRIDGE_DATABASE_URL_FILE: is set, and BRIDGE_DATABASE_URL too; unset one of them"},
		{"BRIDGE_OWN_TABLE", "orders", `BRIDGE_OWN_TABLE: "orders" is not TABLE.COLUMN or SCHEMA.TABLE.COLUMN; write it so`},
		{"BRIDGE_OWN_TABLE_CANARY", "INSERT", "BRIDGE_OWN_TABLE_CANARY: is set, and BRIDGE_OWN_TABLE is not"},
		{"BRIDGE_ALLOW", "emails", `BRIDGE_ALLOW: "emails" is not EXCHANGE:KEY; write :emails for the queue`},
		{"BRIDGE_ALLOW", "", "BRIDGE_ALLOW: is empty"},
		{"BRIDGE_ALLOW", ":\xff", "BRIDGE_ALLOW: is not UTF-8"},
		{"BRIDGE_EXPLAIN_AFTER", "0s", `BRIDGE_EXPLAIN_AFTER: "0s" is not usable; give a positive duration such as 10s or 5m, or never`},
		{"BRIDGE_STATUS_ADDR", "8082", `BRIDGE_STATUS_ADDR: "8082" is not usable; give host:port, :port for 127.0.0.1`},
		{"BRIDGE_STATUS_HOSTS", "verifier.example:8082", `BRIDGE_STATUS_HOSTS: "verifier.example:8082" is not usable; give names of hosts without ports`},
		{"OTEL_TRACES_EXPORTER", "zipkin", `OTEL_TRACES_EXPORTER: "zipkin" is not usable; give otlp or none`},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", `OTEL_EXPORTER_OTLP_PROTOCOL: "grpc" is not usable; give http/protobuf`},
	} {
		t.Run(c.name+"="+c.value, func(t *testing.T) {
			minimal(t)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
			t.Setenv(c.name, c.value)
			refused(t, exitMisused, c.want)
		})
	}
}

// Without an allow-list a message could go to every exchange that the verifier's login may write to.
func TestTheAllowListIsRequired(t *testing.T) {
	address := migrated(t)
	minimal(t)
	if err := os.Unsetenv("BRIDGE_ALLOW"); err != nil {
		t.Fatal(err)
	}
	for _, own := range []string{"", "orders.id"} {
		if own != "" {
			t.Setenv("BRIDGE_OWN_TABLE", own)
		}
		refused(t, exitMisused, "BRIDGE_ALLOW: is not set; name the targets that messages may go to, such as :emails")
	}
	t.Setenv("BRIDGE_DATABASE_URL", address)
	if code, _, stderr := outcome(t, "-migrate"); code != exitDone {
		t.Errorf("-migrate needs it: exit code %d, %s", code, stderr)
	}
}

func TestAnUnusableServerIsNamedWithAFix(t *testing.T) {
	ledger, empty := migrated(t), filepath.Join(t.TempDir(), "empty.db")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BRIDGE_ALLOW", "*:*")
	const away, awayBroker = "postgres://u:s3cret@127.0.0.1:1/db", "amqp://u:s3cret@127.0.0.1:1/"
	t.Setenv("BRIDGE_LOG_LEVEL", "error")
	plain := commandtest.Listen(t, "127.0.0.1:0")
	go func() {
		if client, err := plain.Accept(); err == nil {
			_, _ = client.Write([]byte("AMQP\x00\x00\x09\x01")) // as RabbitMQ does
			_ = client.Close()
		}
	}()
	for _, c := range []struct {
		database, broker string
		code             int
		variable, fix    string
	}{
		{away, awayBroker, exitDatabase, "BRIDGE_DATABASE_URL", "check that the database exists and runs"},
		{"sqlite:/nowhere/missing.db", awayBroker, exitDatabase, "BRIDGE_DATABASE_URL", "check that the database exists and runs"},
		{"sqlite:" + empty, awayBroker, exitSchema, "BRIDGE_DATABASE_URL", "create the tables with verifier -migrate"},
		{"postgres://u:s3cret#@h/d", awayBroker, exitMisused, "BRIDGE_DATABASE_URL", "must be postgres://user:password@host:port/database"},
		{"oracle://u:s3cret@h/d", awayBroker, exitMisused, "BRIDGE_DATABASE_URL", "must start with postgres://"},
		{ledger, awayBroker, exitBroker, "BRIDGE_AMQP_URL", "check that the broker runs"},
		{ledger, "amqps://u:s3cret@" + plain.Addr().String() + "/", exitBroker, "BRIDGE_AMQP_URL", "this port seems to have no TLS"},
		{ledger, "http://u:s3cret@127.0.0.1:1/", exitMisused, "BRIDGE_AMQP_URL", "not of the form"},
	} {
		t.Setenv("BRIDGE_DATABASE_URL", c.database)
		t.Setenv("BRIDGE_AMQP_URL", c.broker)
		if line := refused(t, c.code, c.variable+": "); !strings.Contains(line, c.fix) {
			t.Errorf("%s, %s: %q does not say %q", c.database, c.broker, line, c.fix)
		}
	}
	t.Setenv("BRIDGE_DATABASE_URL", ledger)
	t.Setenv("BRIDGE_OWN_TABLE", "bridge_ledger.number")
	refused(t, exitMisused, "BRIDGE_OWN_TABLE: open own table: ")
	if content, err := os.ReadFile(empty); err != nil || len(content) != 0 {
		t.Errorf("the file was touched: %d bytes, %v", len(content), err)
	}
}

// In a URL whose password is not percent-encoded, a part of the password may look like a host,
// port, path, parameter or fragment.
func TestNoPasswordOfAnUnencodedURLIsPrinted(t *testing.T) {
	ledger := migrated(t)
	t.Setenv("BRIDGE_HTTP_ADDR", "none")
	t.Setenv("BRIDGE_LOG_LEVEL", "debug")
	for _, scheme := range []string{"amqp", "postgres", "mysql", "sqlserver"} {
		for _, first := range []string{"hEaDmArK", "4711"} { // the second looks like a port
			for _, special := range "/?#@%:[]\\ \n\x7f" {
				bad := fmt.Sprintf("%s://shop:%s%ctAiLmArK@127.0.0.1:1/db", scheme, first, special)
				if scheme == "amqp" {
					t.Setenv("BRIDGE_DATABASE_URL", ledger)
					t.Setenv("BRIDGE_AMQP_URL", bad)
				} else {
					t.Setenv("BRIDGE_DATABASE_URL", bad)
				}
				code, _, stderr := outcome(t)
				said := strings.ToLower(stderr)
				if code == exitDone || said == "" || strings.Contains(said, "headmark") || strings.Contains(said, "4711") || strings.Contains(said, "tailmark") {
					t.Errorf("%q: exit code %d, %s", bad, code, stderr)
				}
			}
		}
	}
}

func TestBadArguments(t *testing.T) {
	minimal(t)
	for _, arg := range []string{"-migrat", "migrate", "-amqp-url=amqp://u:s3cret@h/"} {
		if line := refused(t, exitMisused, "", arg); !strings.Contains(line, "see verifier -help") {
			t.Errorf("%s: %s", arg, line)
		}
	}
}

func TestTheHelpFitsAScreenAndShowsNothingThatIsSet(t *testing.T) {
	minimal(t)
	commandtest.Help(t, run, "  BRIDGE_PREFETCH (default 3000)", "s3cret", "nowhere")
}

// Each page that states the number of connections states Options.Connections plus the worker's
// own. The pages about Kubernetes count with the deployment's BRIDGE_SETTLERS.
func TestTheNumberOfConnectionsIsTheSameEverywhere(t *testing.T) {
	read := func(name string) string {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(strings.ReplaceAll(string(content), "#", "")), " ")
	}
	match := regexp.MustCompile(`BRIDGE_SETTLERS, value: "(\d+)"`).FindStringSubmatch(read("../../compose/kubernetes/base/verifier.yaml"))
	if match == nil {
		t.Fatal("the deployment has no settlers")
	}
	settlers, err := strconv.Atoi(match[1])
	if err != nil {
		t.Fatal(err)
	}
	options := verifier.Options{Settlers: settlers}
	deployment := fmt.Sprintf("%d connections", options.Connections()+ops.Connections)
	byDefault := new(verifier.Options).Connections() + ops.Connections
	if byDefault != 27 { // 16 settlers and eleven more
		t.Errorf("%d connections by default, not 27", byDefault)
	}
	for name, says := range map[string][]string{
		"README.md":                                  {"eleven more"},
		"../../compose/README.md":                    {"eleven more", deployment},
		"../../compose/SIZING.md":                    {"eleven more", fmt.Sprintf("%d by default", byDefault)},
		"../../compose/kubernetes/keda/scaling.yaml": {"eleven more", deployment},
	} {
		for _, text := range says {
			if !strings.Contains(read(name), text) {
				t.Errorf("%s does not say %q", name, text)
			}
		}
	}
}

// A worker refuses unknown variables, so the Kubernetes example must set none.
func TestTheKubernetesExampleSetsKnownVariables(t *testing.T) {
	manifest, err := os.ReadFile("../../compose/kubernetes/base/verifier.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var known strings.Builder
	if err := environment.Usage(&known, prefix, new(config), "\nGOMEMLIMIT\n{{range .}}{{usage_key .}}\n{{end}}"); err != nil {
		t.Fatal(err)
	}
	set := regexp.MustCompile(`\{name: (\w+), value:`).FindAllStringSubmatch(string(manifest), -1)
	if len(set) < 8 {
		t.Errorf("it sets only %v", set)
	}
	for _, match := range set {
		if !strings.Contains(known.String(), "\n"+match[1]+"\n") {
			t.Errorf("the verifier has no variable %s", match[1])
		}
	}
}

// The table in the worker's README is made from config.
func TestReadmeTable(t *testing.T) { commandtest.ReadmeTable(t, prefix, new(config)) }
