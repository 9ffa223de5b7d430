package bridgectl_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/creack/pty"
	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// status is what status and top answer.
type status struct {
	At     time.Time
	Queues []struct {
		Name, Role       string
		Ready, Consumers int
		Held             *int
		In, Out, Change  *float64
	}
	Ledger *struct {
		Identity              uuid.UUID
		Rows, Orphans, Parked *int
		Open                  []inspect.Holder
	}
	Workers []struct {
		Address, Error                    string
		Running                           *bool
		Forwarded, Dropped, Held, Waiting *float64
		ForwardedRate                     *float64 `json:"forwarded_rate"`
	}
	Failures []string
}

// ready is how many messages are ready in the queue of a role; -1 if there is none.
func (s status) ready(role string) int {
	for _, q := range s.Queues {
		if q.Role == role {
			return q.Ready
		}
	}
	return -1
}

// park parks letters in a transaction that commits.
func (s *scene) park(t *testing.T, messages ...bridge.Message) []uuid.UUID {
	t.Helper()
	outbox, err := sender.New(s.Ledger, nil, &sender.Options{Queue: s.Topology.Queue, Parking: sender.ParkAlways})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := s.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := outbox.SendTx(t.Context(), bridge.SQL(tx), messages...)
	if err != nil {
		_ = tx.Rollback()
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	return ids
}

// age lets a row look as if it had been recorded long ago.
func (s *scene) age(t *testing.T, id uuid.UUID, by time.Duration) {
	t.Helper()
	statement := fmt.Sprintf(`UPDATE bridge_ledger SET recorded_at = recorded_at - interval '%d seconds' WHERE id = '%s'`, int(by.Seconds()), id)
	if s.Kind.Name == stage.SQLite.Name {
		statement = fmt.Sprintf(`UPDATE bridge_ledger SET recorded_at = recorded_at - %d WHERE id = '%s'`, int(by.Seconds()), id)
	}
	result, err := s.DB.ExecContext(t.Context(), statement)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := result.RowsAffected(); n != 1 || err != nil {
		t.Fatalf("%d rows aged, %v", n, err)
	}
}

func TestStatusTellsWhatIsGoingOn(t *testing.T) {
	t.Parallel()
	for _, kind := range stage.Databases {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			s := sceneOn(t, stage.On(t, kind, stage.New(t, stage.SQLite).AMQP, bridge.Topology{Queue: "shop", Audit: 10}))
			s.StageSingly()
			old := s.Commit(letter("t", "1"), letter("t", "2"))[0]
			s.age(t, old, 8*24*time.Hour)
			s.park(t, letter("t", "3"), letter("t", "4"), letter("t", "5"))
			s.bury(t, "t", 4)
			tx, _ := s.Begin(letter("t", "6"))
			defer func() { _ = tx.Rollback() }()

			var got status
			s.Eventually("all rows are old enough to be counted", func() bool { // SQLite's times are whole seconds
				got = status{}
				s.json(&got, "status", "--open-for=0s")
				return got.Ledger != nil && *got.Ledger.Rows == 2
			})
			for role, want := range map[string]int{"staging": 3, "waiting": 0, "dead": 4, "audit": 0} {
				if got.ready(role) != want {
					t.Errorf("%d ready in the %s queue, not %d", got.ready(role), role, want)
				}
			}
			l := got.Ledger
			if l.Identity != s.Ledger.Identity() || *l.Orphans != 1 || *l.Parked != 3 {
				t.Fatalf("ledger %+v", l)
			}
			if watches := kind.Name != stage.SQLite.Name; watches != (l.Open != nil) || watches && (len(l.Open) != 1 || l.Open[0].Session == "" || time.Since(l.Open[0].Since) > time.Hour) {
				t.Errorf("open transactions %+v", l.Open)
			}
			if got.Queues[0].Held != nil || got.Queues[0].In != nil {
				t.Errorf("known without the management API: %+v", got.Queues[0])
			}
			text := s.must("status", "--open-for=0s")
			for _, want := range []*regexp.Regexp{
				regexp.MustCompile(`(?m)^shop +3 +- +- +0 +- +-$`),
				regexp.MustCompile(`(?m)^shop\.dead +4 `),
				regexp.MustCompile(`(?m)^` + l.Identity.String() + ` +2 +3 +1 `),
			} {
				if !want.MatchString(text) {
					t.Errorf("it says\n%swithout %s", text, want)
				}
			}
		})
	}
}

// What is held and how fast is the management API's knowledge, some seconds late.
func TestStatusTellsWhatTheManagementAPIKnows(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	s.bury(t, "t", 3)
	s.WaitDepth(s.Topology.DeadQueue(), 3)
	if _, ok, err := s.Channel.Get(s.Topology.DeadQueue(), false); err != nil || !ok {
		t.Fatal(err)
	}
	tool := s.managed(t)
	s.Eventually("one is held", func() bool {
		var got status
		tool.json(&got, "status")
		q := got.Queues[2]
		return q.Role == "dead" && q.Held != nil && *q.Held == 1 && q.Ready == 2 && q.In != nil && q.Out != nil
	})
	s.also("BRIDGE_MANAGEMENT_URL=nonsense").fails(2, "BRIDGE_MANAGEMENT_URL", "status")
}

func TestStatusShowsAServerThatIsAway(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	r := s.also("BRIDGE_AMQP_URL=amqp://u:secret@127.0.0.1:1/").run("status")
	if r.Code != 1 || r.Stderr != "" || !strings.Contains(r.Stdout, "failed: BRIDGE_AMQP_URL: connect to the broker") ||
		!strings.Contains(r.Stdout, s.Ledger.Identity().String()) || strings.Contains(r.Stdout, "secret") {
		t.Errorf("exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	s.also("BRIDGE_AMQP_URL=", "BRIDGE_DATABASE_URL=").fails(2, "nothing is known without a server", "status")
	s.fails(2, "--worker: is not of the form http://host:port", "status", "--worker=localhost:1")
}

// The real worker's numbers.
func TestStatusAsksAWorker(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.Postgres)
	target := s.Queue("target", nil)
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close() // the worker takes it
	program.StartCmd(t, s.also("BRIDGE_HTTP_ADDR="+address).command("verifier"))
	s.Commit(letter(target, "1"), letter(target, "2"), letter(target, "3"))
	s.RollBack(letter(target, "4"))
	s.WaitDepth(target, 3)
	s.Eventually("it has said so", func() bool {
		var got status
		text := s.run("status", "--worker=http://"+address, "-o", "json")
		if err := json.Unmarshal([]byte(text.Stdout), &got); err != nil {
			t.Fatal(err)
		}
		w := got.Workers[0]
		return text.Code == 0 && w.Running != nil && *w.Running && *w.Forwarded == 3 && *w.Dropped == 1 && *w.Held == 0
	})
}

func TestTopOnATerminalKeepsToEightyColumnsAndLeavesItAsItWas(t *testing.T) {
	t.Parallel()
	queue := "a-queue-with-a-name-that-is-much-longer-than-any-column-of-a-terminal-is-wide"
	s := sceneOn(t, stage.On(t, stage.Postgres, stage.New(t, stage.SQLite).AMQP, bridge.Topology{Queue: queue}))
	s.Commit(letter("t", "1"))
	for range 3 {
		tx, _ := s.Begin(letter("t", "2"))
		defer func() { _ = tx.Rollback() }()
	}
	worker := metricsServer(t)

	cmd := s.managed(t).command("bridgectl", "top", "--open-for=0s", "--every=200ms", "--worker="+worker,
		"--worker=http://127.0.0.1:1")
	cmd.Env = append(cmd.Env, "TERM=xterm")
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 80})
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	defer time.AfterFunc(patience, func() { _ = cmd.Process.Kill() }).Stop()
	var all strings.Builder
	for buffer := make([]byte, 4096); strings.Count(all.String(), "\x1b[J") < 4; {
		n, err := terminal.Read(buffer)
		if err != nil {
			t.Fatalf("%v after\n%s", err, &all)
		}
		all.Write(buffer[:n])
	}
	if _, err := terminal.Write([]byte{3}); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	rest, err := io.ReadAll(terminal)
	if err != nil && !errors.Is(err, syscall.EIO) { // so a terminal ends
		t.Fatal(err)
	}
	all.Write(rest)
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ends with %v", err)
	}
	text := all.String()
	if !strings.HasPrefix(text, "\x1b[?1049h\x1b[?25l") || !strings.HasSuffix(strings.TrimSpace(text), "\x1b[?25h\x1b[?1049l") {
		t.Errorf("it begins with %q and ends with %q", text[:20], text[len(text)-20:])
	}
	frames := strings.Split(text, "\x1b[H")[1:]
	for _, frame := range frames[:len(frames)-1] {
		for line := range strings.SplitSeq(strings.TrimSuffix(frame, "\x1b[J"), "\x1b[K") {
			line = strings.Trim(line, "\r\n")
			if n := utf8.RuneCountInString(line); n > 80 || strings.Contains(line, "\x1b") {
				t.Errorf("a line of %d columns: %q", n, line)
			}
		}
	}
	last := frames[len(frames)-2]
	for _, want := range []string{"bridgectl top", "a-queue-wi…terminal-is-wide ", "a-queue-wi…nal-is-wide.dead ", "LEDGER", "OPEN FOR", "FORWARDED", "/s", "away", "failed: ask worker http://127.0.0.1:1"} {
		if !strings.Contains(last, want) {
			t.Errorf("%q is not in\n%s", want, last)
		}
	}
	t.Logf("a frame:\n%s", strings.NewReplacer("\x1b[K", "", "\x1b[J", "", "\r", "").Replace(last))
}

// metricsServer is a worker that forwards 500 messages between any two scrapes.
func metricsServer(t *testing.T) string {
	t.Helper()
	var scrapes atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		n := scrapes.Add(1)
		fmt.Fprintf(w, "# TYPE twoqueue_messages_total counter\ntwoqueue_messages_total{verdict=\"forwarded\"} %d\n"+
			"twoqueue_messages_total{verdict=\"dropped\"} 7\n# TYPE twoqueue_session_running gauge\ntwoqueue_session_running 1\n", 500*n)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestTopWritesALineOfJSONEachTimeWithTheRates(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	text := s.must("top", "-o", "json", "--times=3", "--every=200ms", "--worker="+metricsServer(t))
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines\n%s", len(lines), text)
	}
	for i, line := range lines {
		var got status
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatal(err)
		}
		w, q := got.Workers[0], got.Queues[0]
		if first := i == 0; first != (w.ForwardedRate == nil) || first != (q.Change == nil) || *w.Forwarded != float64(500*(i+1)) {
			t.Errorf("line %d: %+v, %+v", i, w, q)
		}
		if i > 0 && *w.ForwardedRate <= 0 {
			t.Errorf("%v a second", *w.ForwardedRate)
		}
	}
}

// A top whose servers go away goes on, and finds them again.
func TestTopOutlivesTheBroker(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	v, through := servertest.Through(t, s.AMQP)
	cmd := s.also("BRIDGE_AMQP_URL="+through).command("bridgectl", "top", "-o", "json", "--every=100ms")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(patience, func() { _ = cmd.Process.Kill() }).Stop()
	answers := json.NewDecoder(out)
	until := func(what string, holds func(status) bool) {
		t.Helper()
		for {
			var got status
			if err := answers.Decode(&got); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if holds(got) {
				return
			}
		}
	}
	until("it sees the queues", func(s status) bool { return len(s.Queues) == 3 && len(s.Failures) == 0 })
	v.Cut()
	until("it sees them again", func(s status) bool { return len(s.Queues) == 3 && len(s.Failures) == 0 })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ends with %v", err)
	}
}
