// Package python_test tests the sender in Python (sender/python) on real servers, with a verifier of
// ours.
package python_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

func TestMain(m *testing.M) { servertest.Main(m) }

const (
	senderFolder  = "../../sender/python"
	vectorsFolder = "../../bridge/wire/testdata/vectors"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// interpreter returns a Python that has pika and psycopg, "" if there is none.
var interpreter = sync.OnceValue(func() string {
	for _, name := range []string{"/usr/bin/python3", "python3"} { // the first has Debian's packages
		if exec.Command(name, "-c", "import pika, psycopg").Run() == nil {
			return name
		}
	}
	return ""
})

// python returns a command of Python.
func python(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	if interpreter() == "" {
		const missing = "python3 has no pika or psycopg: apt-get install python3-pika python3-psycopg, or run ./tests/run, which does"
		if os.Getenv("CI") == "true" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	// Go's cache of test results notices a change only in files that the test itself looks at.
	for _, file := range []string{senderFolder + "/twoqueue.py", senderFolder + "/vectors.py", "program.py"} {
		_, err := os.Stat(file)
		must(t, err)
	}
	cmd := exec.Command(interpreter(), append([]string{"-B"}, args...)...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+senderFolder+string(filepath.ListSeparator)+os.Getenv("PYTHONPATH"))
	return cmd
}

func TestPythonPassesTheVectors(t *testing.T) {
	t.Parallel()
	number := 0
	files, err := filepath.Glob(vectorsFolder + "/*.json")
	must(t, err)
	for _, file := range files {
		content, err := os.ReadFile(file)
		must(t, err)
		var vectors []json.RawMessage
		must(t, json.Unmarshal(content, &vectors))
		number += len(vectors)
	}
	got := program.RunCmd(t, python(t, senderFolder+"/vectors.py", vectorsFolder))
	if got.Code != 0 {
		t.Fatalf("exit code %d: %s%s", got.Code, got.Stdout, got.Stderr)
	}
	for line := range strings.Lines(got.Stdout) {
		n, err := strconv.Atoi(strings.Fields(line)[0])
		must(t, err)
		number -= n
	}
	if number != 0 {
		t.Errorf("%d vectors were not read: %s", number, got.Stdout)
	}
}

// One wrong vector of any kind, or one misspelt field, must make the program fail.
func TestPythonFailsAtAnotherFormat(t *testing.T) {
	t.Parallel()
	for _, change := range []struct{ file, from, to, says string }{
		{"messages.json", `"x-bridge-expiration"`, `"x-bridge-expires"`, ""},
		{"refused.json", `"routing-key": ""`, `"routing-key": "q"`, ""},
		{"order.json", "staging.ordered.6", "staging.ordered.5", ""},
		{"records.json", `"record": "00`, `"record": "01`, ""},
		{"groups.json", `"x-bridge-group"`, `"x-bridge-groups"`, ""},
		{"rows.json", `"message": {"hex": "00`, `"message": {"hex": "01`, ""},
		{"parsed.json", `"kind": "parsed"`, `"kind": "unknown"`, ""},
		{"rows.json", `"columns": {`, `"colums": {}, "columns": {`, "colums is not known"},
		{"refused.json", `"message": {`, `"message": {"order_key": "k", `, "order_key is not known"},
		{"messages.json", `"properties": {`, `"properties": {"reply_to": "q", `, "reply_to is not known"},
	} {
		content, err := os.ReadFile(filepath.Join(vectorsFolder, change.file))
		must(t, err)
		changed := bytes.Replace(content, []byte(change.from), []byte(change.to), 1)
		folder := t.TempDir()
		must(t, os.WriteFile(filepath.Join(folder, change.file), changed, 0o600))
		got := program.RunCmd(t, python(t, senderFolder+"/vectors.py", folder))
		if got.Code == 0 || !strings.Contains(got.Stdout, "FAILED: "+change.file) || !strings.Contains(got.Stdout, change.says) || bytes.Equal(changed, content) {
			t.Errorf("%s with %s: exit code %d: %s%s", change.file, change.to, got.Code, got.Stdout, got.Stderr)
		}
	}
}

// world is a stage with a shop's table, and a queue that gets all messages of the exchange orders.
type world struct {
	*stage.Stage
	t *testing.T
}

func newWorld(t *testing.T, topology bridge.Topology) *world {
	t.Helper()
	python(t) // skips the test before it starts servers
	w := &world{stage.On(t, stage.Postgres, servertest.Vhost(t), topology), t}
	_, err := w.DB.ExecContext(t.Context(), `CREATE TABLE orders (id text PRIMARY KEY)`)
	must(t, err)
	must(t, w.Channel.ExchangeDeclare("orders", "fanout", true, false, false, false, nil))
	w.Queue("target", nil)
	must(t, w.Channel.QueueBind("target", "", "orders", false, nil))
	return w
}

// A job is a transaction; see program.py.
type job struct {
	Messages []map[string]any `json:"messages"`
	End      string           `json:"end"`
	Stops    []string         `json:"stops"`
}

type sender struct {
	*program.Dialogue
	t *testing.T
}

// start starts the program with the given addresses.
func (w *world) start(database, broker string) *sender {
	w.t.Helper()
	brief, err := json.Marshal(map[string]any{
		"database": database, "amqp": broker, "queue": w.Topology.Queue, "exchange": w.Topology.Exchange, "shards": w.Topology.OrderedShards,
	})
	must(w.t, err)
	return &sender{program.StartDialogue(w.t, python(w.t, "program.py", string(brief))), w.t}
}

// begin begins a transaction that sends messages.
func (s *sender) begin(end string, stops []string, messages ...map[string]any) {
	s.t.Helper()
	line, err := json.Marshal(job{messages, end, stops})
	must(s.t, err)
	s.Tell(string(line))
}

// login returns the database's address for a new role with the rights of a sender.
func (w *world) login() string {
	w.t.Helper()
	rights, err := migrate.Rights(migrate.PostgreSQL, migrate.Sender, "", "", "")
	must(w.t, err)
	_, address := servertest.PostgresRole(w.t, w.DatabaseURL, append(rights, "INSERT ON orders")...)
	return address
}

// message returns a message in the form of the test vectors, with a new ID.
func message(m bridge.Message) map[string]any {
	p := m.Publishing
	v := map[string]any{
		"id": uuid.Must(uuid.NewV7()).String(), "exchange": m.Exchange, "routing-key": m.RoutingKey, "order-key": m.OrderKey,
		"headers": field(p.Headers)["F"], "body": hex.EncodeToString(p.Body),
	}
	properties := map[string]any{}
	for name, value := range map[string]string{
		"content-type": p.ContentType, "content-encoding": p.ContentEncoding, "correlation-id": p.CorrelationId, "reply-to": p.ReplyTo,
		"expiration": p.Expiration, "type": p.Type, "user-id": p.UserId, "app-id": p.AppId,
	} {
		if value != "" {
			properties[name] = value
		}
	}
	if p.Priority != 0 {
		properties["priority"] = p.Priority
	}
	if !p.Timestamp.IsZero() {
		properties["timestamp"] = p.Timestamp.Unix()
	}
	v["properties"] = properties
	return v
}

func carried(m map[string]any) map[string]any {
	m["carried"] = true
	return m
}

// field returns the value of a header in the form of the test vectors.
func field(value any) map[string]any {
	switch v := value.(type) {
	case nil:
		return map[string]any{"V": nil}
	case bool:
		return map[string]any{"t": v}
	case int32:
		return map[string]any{"I": v}
	case int64:
		return map[string]any{"l": v}
	case string:
		return map[string]any{"S": v}
	case []byte:
		return map[string]any{"x": hex.EncodeToString(v)}
	case time.Time:
		return map[string]any{"T": v.Unix()}
	case amqp.Decimal:
		return map[string]any{"D": map[string]any{"scale": v.Scale, "value": v.Value}}
	case amqp.Table:
		fields := map[string]any{}
		for name, inner := range v {
			fields[name] = field(inner)
		}
		return map[string]any{"F": fields}
	case []any:
		elements := []any{}
		for _, inner := range v {
			elements = append(elements, field(inner))
		}
		return map[string]any{"A": elements}
	}
	panic(fmt.Sprintf("no type for %T", value))
}

// order is a message with every property, and headers of every type that pika writes.
func order() bridge.Message {
	return bridge.Message{Exchange: "orders", RoutingKey: "order.placed", Publishing: amqp.Publishing{
		Headers: amqp.Table{
			"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "größe": "東京", "empty": "", "nothing": nil,
			"yes": true, "no": false, "number": int32(-7), "long": int64(1) << 53, "bytes": []byte{0, 3, 255}, "time": time.Unix(1700000000, 0),
			"price": amqp.Decimal{Scale: 2, Value: 314}, "table": amqp.Table{"list": []any{int32(1), "two", nil, []any(nil), amqp.Table{}}},
			"CC": []any{"copy"}, "BCC": []any{"blind"},
		},
		ContentType: "application/json", ContentEncoding: "identity", Priority: 7, CorrelationId: "correlation", ReplyTo: "answers",
		Expiration: "3600000", Timestamp: time.Unix(1700000000, 0), Type: "OrderPlaced", UserId: "shop", AppId: "app", Body: []byte("\x00\xff order"),
	}}
}

// asSent reports whether the receiver gets the message of order.
func asSent(d amqp.Delivery) bool {
	want := order().Publishing
	delete(want.Headers, "BCC") // the broker itself removes this header
	got := amqp.Publishing{
		Headers: d.Headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, Priority: d.Priority, CorrelationId: d.CorrelationId,
		ReplyTo: d.ReplyTo, Expiration: d.Expiration, Timestamp: d.Timestamp, Type: d.Type, UserId: "shop", AppId: d.AppId, Body: d.Body,
	}
	return d.DeliveryMode == amqp.Persistent && d.UserId == "" && reflect.DeepEqual(got, want)
}

// check has verifiers judge all messages, and fails the test unless the messages of the committed
// orders were delivered, once and unchanged, and no others.
func (w *world) check() {
	w.t.Helper()
	w.Finish(w.t, func(left int) {
		v := w.Verify(verifier.Options{})
		w.Evidence()
		w.Eventually("all that was left is judged", func() bool {
			got := v.Stats()
			return got.Forwarded+got.Dropped+got.DeadLettered > int64(left) && w.Rows() == 0
		})
		v.Stop()
	})
	w.WantNothingLeft(w.t)
	w.wantDelivered()
}

func (w *world) wantDelivered() {
	w.t.Helper()
	committed := make(map[uuid.UUID]bool)
	for _, id := range w.IDs(w.t, `SELECT id FROM orders`) {
		committed[id] = true
	}
	copies, _ := w.Delivered(w.t, "target", asSent)
	stage.CompareOnce(w.t, committed, copies)
	if len(committed) == 0 {
		w.t.Error("nothing was committed")
	}
}

func TestPythonsCommittedMessagesArriveOnceAsSentAndNoOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bridge.Topology{Queue: "staging", Exchange: "python.stage"})
	valve, through := servertest.Through(t, w.AMQP)
	s := w.start(w.DatabaseURL, through)
	several := func(n int) (messages []map[string]any) {
		for range n {
			messages = append(messages, message(order()), carried(message(order())))
		}
		return messages
	}
	for range 3 {
		s.begin("commit", nil, message(order()))
		s.Says("sent")
		s.begin("rollback", nil, message(order()))
		s.Says("rolled back")
		s.begin("commit", nil, carried(message(order())))
		s.Says("sent")
		s.begin("rollback", nil, carried(message(order())))
		s.Says("rolled back")
		s.begin("commit", nil, several(5)...)
		s.Says("sent")
		s.begin("rollback", nil, several(5)...)
		s.Says("rolled back")
		valve.Cut() // as a broker does with a connection that is idle for too long
	}
	// Twelve groups among them.
	if n := w.Depth("staging"); n != 24 {
		t.Errorf("%d messages are staged, want 24", n)
	}
	for _, d := range w.Staged() {
		parsed, err := wire.Parse(d)
		if err != nil || parsed.UserID != "shop" || parsed.StagedAt.Before(time.Now().Add(-stage.Patience)) {
			t.Errorf("staged %+v (%v)", parsed, err)
		}
	}
	w.check()
}

// Each transaction has a message that its row carries, and one that it does not carry.
func TestAKilledPythonSenderLosesAndInventsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bridge.Topology{Queue: "staging"})
	for point, want := range map[string]driver.Outcome{
		"begun": driver.RolledBack, "recorded": driver.RolledBack, "unconfirmed": driver.RolledBack, "published": driver.RolledBack,
		"sent": driver.RolledBack, "commit": driver.Committed, "committed": driver.Committed,
	} {
		messages := []map[string]any{message(order()), carried(message(order()))}
		staged := w.Depth("staging")
		switch point {
		case "unconfirmed": // the broker has the message, and its confirm does not arrive
			valve, through := servertest.Through(t, w.AMQP)
			s := w.start(w.DatabaseURL, through)
			s.begin("commit", []string{"sent", "publishing"}, messages...)
			s.Says("publishing")
			w.wantStaged(staged)
			w.wantOutcome(messages[0], driver.StillOpen) // so its row is there (rule 1)
			valve.HoldReplies()
			s.Tell("")
			w.WaitDepth("staging", staged+1)
			s.KillRunning()
		case "commit": // the answer to the COMMIT does not arrive
			valve, through := servertest.Through(t, w.DatabaseURL)
			s := w.start(through, w.AMQP)
			s.begin("commit", []string{"sent", "committed"}, messages...)
			s.Says("sent")
			w.wantStaged(staged + 2) // the broker has both before the COMMIT (rule 2)
			valve.HoldReplies()
			s.Tell("")
			w.wantOutcome(messages[0], want)
			s.KillRunning()
		default:
			s := w.start(w.DatabaseURL, w.AMQP)
			s.begin("commit", []string{point}, messages...)
			s.Says(point)
			s.KillRunning()
		}
		for _, m := range messages {
			w.wantOutcome(m, want)
		}
	}
	w.check()
}

func (w *world) wantStaged(want int) {
	w.t.Helper()
	if n := w.Depth("staging"); n != want {
		w.t.Errorf("%d messages are staged, not %d", n, want)
	}
}

func (w *world) wantOutcome(m map[string]any, want driver.Outcome) {
	w.t.Helper()
	wait := stage.Patience
	if want == driver.StillOpen {
		wait = 100 * time.Millisecond
	}
	outcome, _, err := w.Ledger.Settle(w.t.Context(), uuid.MustParse(m["id"].(string)), wait)
	must(w.t, err)
	if outcome != want {
		w.t.Errorf("the transaction of %s is %v, not %v", m["id"], outcome, want)
	}
}

// The caller sees the exception. Also if the caller catches it and commits, no message is sent.
func TestPythonsMessageIsNotSentWithoutTheStagingQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bridge.Topology{Queue: "staging"})
	s := w.start(w.DatabaseURL, w.AMQP)
	fails := func(with string) {
		t.Helper()
		s.begin("commit", nil, message(order()))
		s.Says(with)
		s.begin("catch", nil, message(order()), carried(message(order())))
		s.Says(with)
		_, err := w.DB.ExecContext(t.Context(), `DELETE FROM orders`) // of the caller that has caught the exception
		must(t, err)
		if n := w.Rows(); n != 0 {
			t.Fatalf("%d rows in the ledger", n)
		}
	}
	_, err := w.Channel.QueueDelete("staging", false, false, false)
	must(t, err)
	fails("UnroutableError")
	w.Queue("staging", amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
	fails("NackError")
	s.begin("commit", nil, carried(message(order()))) // its row holds it
	s.Says("sent")
	_, err = w.Channel.QueueDelete("staging", false, false, false)
	must(t, err)
	must(t, w.Topology.Declare(t.Context(), w.Broker))
	s.begin("commit", nil, message(order())) // over a new connection
	s.Says("sent")
	w.check()
}

func TestPythonsCarriedMessageNeedsNoStagedCopy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bridge.Topology{Queue: "staging"})
	away := servertest.NewValve(t, "127.0.0.1:1") // it accepts connections, and closes them
	purged, unpublished := carried(message(order())), carried(message(order()))
	s := w.start(w.DatabaseURL, w.AMQP)
	s.begin("commit", nil, purged)
	s.Says("sent")
	n, err := w.Channel.QueuePurge("staging", false)
	if err != nil || n != 1 {
		t.Fatalf("purged %d messages (%v)", n, err)
	}
	s = w.start(w.DatabaseURL, "amqp://guest:guest@"+away.Addr()+"/")
	s.begin("commit", nil, unpublished)
	s.Says("sent")
	s.begin("commit", nil, message(order()))
	s.Says("IncompatibleProtocolError")
	for m, later := range map[*map[string]any]time.Duration{&purged: driver.PublishedGrace, &unpublished: 0} {
		var record []byte
		var recorded, due time.Time
		must(t, w.DB.QueryRowContext(t.Context(), `SELECT message, recorded_at, stage_at FROM bridge_ledger WHERE id = $1`, (*m)["id"]).Scan(&record, &recorded, &due))
		if got := due.Sub(recorded); got != later || time.Since(recorded).Abs() > stage.Patience {
			t.Errorf("recorded at %v, staged %v later, want %v", recorded, got, later)
		}
		if parsed, err := wire.ReadRecord(w.Ledger.Identity(), record); err != nil || parsed.ID.String() != (*m)["id"] || !parsed.Carried {
			t.Errorf("the row holds %+v (%v)", parsed, err)
		}
	}
	v := w.Verify(verifier.Options{})
	w.WaitDepth("target", 2)
	v.Stop()
	if n := v.Stats().Restaged; n != 2 {
		t.Errorf("%d messages were staged from their rows, want 2", n)
	}
	w.check()
}

func TestPythonsMessagesKeepTheOrderOfTheirKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bridge.Topology{Queue: "staging", OrderedShards: 3})
	w.Queue("ordered", nil)
	s := w.start(w.DatabaseURL, w.AMQP)
	keys := []string{"a", "123456789", "straße", "d"}
	want := make(map[string][]string)
	send := func(end, answer string, n int) {
		t.Helper()
		var messages []map[string]any
		for i := range n {
			for _, key := range keys {
				m := message(bridge.Message{RoutingKey: "ordered", OrderKey: key, Publishing: amqp.Publishing{Type: key, Body: []byte{byte(i)}}})
				messages = append(messages, m)
				if end == "commit" {
					want[key] = append(want[key], m["id"].(string))
				}
			}
		}
		s.begin(end, nil, messages...)
		s.Says(answer)
	}
	send("commit", "sent", 1)
	for _, key := range keys {
		if !slices.ContainsFunc(w.StagedInOrder(key), func(d amqp.Delivery) bool { return d.Headers[wire.HeaderOrderKey] == key }) {
			t.Errorf("key %q is not in the queue %s", key, w.Topology.OrderedQueueOf(key))
		}
	}
	v := w.Verify(verifier.Options{})
	w.Evidence()
	for range 10 {
		send("commit", "sent", 3)
		send("rollback", "rolled back", 2)
		send("commit", "sent", 1)
	}
	got := make(map[string][]string)
	for _, d := range w.Receive("ordered", 41*len(keys)) {
		got[d.Type] = append(got[d.Type], d.MessageId)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("received\n%v\nwant\n%v", got, want)
	}
	w.Eventually("all is judged", func() bool { return v.Stats().Dropped == 20*int64(len(keys)) && w.Rows() == 0 })
	v.Stop()
	w.WantNothingLeft(t)
}

// speak runs a program in Python that may use the world's servers, and wants its output.
func (w *world) speak(want, code string) {
	w.t.Helper()
	cmd := python(w.t, "-c", "import os, signal, pika, psycopg, twoqueue\n"+code)
	cmd.Env = append(cmd.Env, "DATABASE_URL="+w.DatabaseURL, "AMQP_URL="+w.AMQP)
	if got := program.RunCmd(w.t, cmd); got.Code != 0 || strings.TrimSpace(got.Stdout) != want {
		w.t.Errorf("exit code %d, said %q, want %q: %s", got.Code, got.Stdout, want, got.Stderr)
	}
}

// An exception can arrive anywhere, from the handler of a signal.
func TestPythonPublishesOnlyOnAChannelThatConfirms(t *testing.T) {
	t.Parallel()
	newWorld(t, bridge.Topology{Queue: "staging"}).speak("KeyboardInterrupt UnroutableError", `
confirm = pika.adapters.blocking_connection.BlockingChannel.confirm_delivery
def interrupted(channel):
    pika.adapters.blocking_connection.BlockingChannel.confirm_delivery = confirm
    signal.raise_signal(signal.SIGINT)
pika.adapters.blocking_connection.BlockingChannel.confirm_delivery = interrupted
db = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
sender = twoqueue.Sender(pika.URLParameters(os.environ["AMQP_URL"]), twoqueue.ledger_of(db), "missing")
for _ in range(2):
    try:
        with db.transaction():
            sender.send(db, twoqueue.Message("", "target"))
        print("sent")
    except BaseException as error:
        print(type(error).__name__, end=" ")
`)
}

// Two threads at once could take each other's confirms.
func TestPythonsSenderServesOneThreadAtATime(t *testing.T) {
	t.Parallel()
	newWorld(t, bridge.Topology{Queue: "staging"}).speak("RuntimeError sent sent", `
import threading
publishing, proceed = threading.Event(), threading.Event()
class Sender(twoqueue.Sender):
    def _publish(self, *args):
        if not publishing.is_set():
            publishing.set()
            proceed.wait()
        super()._publish(*args)
def send():
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as db:
        try:
            with db.transaction():
                sender.send(db, twoqueue.Message("", "target"))
            print("sent", end=" ")
        except Exception as error:
            print(type(error).__name__, end=" ")
with psycopg.connect(os.environ["DATABASE_URL"]) as db:
    sender = Sender(pika.URLParameters(os.environ["AMQP_URL"]), twoqueue.ledger_of(db), "staging")
other = threading.Thread(target=send)
other.start()
publishing.wait()
send()
proceed.set()
other.join()
send()
`)
}

// Two processes on one connection would take each other's confirms.
func TestPythonsForkedSenderOpensItsOwnConnection(t *testing.T) {
	t.Parallel()
	newWorld(t, bridge.Topology{Queue: "staging"}).speak("parent True child False parent True", `
import gc
def send(name):
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as db, db.transaction():
        sender.send(db, twoqueue.Message("", "target"))
    print(name, sender.connection is inherited, end=" ", flush=True)
with psycopg.connect(os.environ["DATABASE_URL"]) as db:
    sender = twoqueue.Sender(pika.URLParameters(os.environ["AMQP_URL"]), twoqueue.ledger_of(db), "staging")
    sender._connect(needed=True)
    inherited = sender.connection
send("parent")
child = os.fork()
if child == 0:
    send("child")
    inherited = None
    gc.collect()  # this does not end the parent's connection
    os._exit(0)
os.waitpid(child, 0)
send("parent")
`)
}

// The thread that holds the lock does not exist in the child.
func TestAForkDuringASendOfPythonLeavesNoLock(t *testing.T) {
	t.Parallel()
	newWorld(t, bridge.Topology{Queue: "staging"}).speak("child parent", `
import threading, warnings
warnings.simplefilter("ignore")  # Python warns of forks with threads
publishing, proceed = threading.Event(), threading.Event()
class Sender(twoqueue.Sender):
    def _publish(self, *args):
        if threading.current_thread() is other:
            publishing.set()
            proceed.wait()
        super()._publish(*args)
def send(name):
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as db, db.transaction():
        sender.send(db, twoqueue.Message("", "target"))
    print(name, end=" ", flush=True)
with psycopg.connect(os.environ["DATABASE_URL"]) as db:
    sender = Sender(pika.URLParameters(os.environ["AMQP_URL"]), twoqueue.ledger_of(db), "staging")
other = threading.Thread(target=send, args=["parent"])
other.start()
publishing.wait()
child = os.fork()
if child == 0:
    try:
        send("child")
    finally:
        os._exit(0)
os.waitpid(child, 0)
proceed.set()
other.join()
`)
}

func TestPythonSaysWhyATransactionIsNotOpen(t *testing.T) {
	t.Parallel()
	newWorld(t, bridge.Topology{Queue: "staging"}).speak(`send: no transaction is open; begin it before, as with db.transaction()
send: a statement of the transaction has failed; roll the transaction back
send: the connection to the database is lost or closed`, `
db = psycopg.connect(os.environ["DATABASE_URL"])
sender = twoqueue.Sender(pika.URLParameters(os.environ["AMQP_URL"]), twoqueue.ledger_of(db), "staging")
def refused():
    try:
        sender.send(db, twoqueue.Message("", "target"))
    except RuntimeError as error:
        print(error)
refused()
try:
    db.execute("SELECT 1/0")
except psycopg.errors.DivisionByZero:
    refused()
db.close()
refused()
`)
}

// The broker accepts connections, and does not answer.
func TestPythonsCarriedMessageNeedsNoAnswerOfTheBroker(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bridge.Topology{Queue: "staging"})
	valve, through := servertest.Through(t, w.AMQP)
	valve.HoldReplies()
	s := w.start(w.DatabaseURL, through+"?stack_timeout=1")
	s.begin("commit", nil, carried(message(order())))
	s.Says("sent")
	s.begin("commit", nil, message(order()))
	s.Says("AMQPConnectorStackTimeout")
	v := w.Verify(verifier.Options{})
	w.WaitDepth("target", 1)
	v.Stop()
	w.check()
}

// Without autocommit the first statement begins a transaction, and db.transaction() in it commits
// nothing.
func TestPythonsLedgerLeavesNoTransactionOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bridge.Topology{Queue: "staging"})
	w.speak(w.Ledger.Identity().String()+" IDLE", `
db = psycopg.connect(os.environ["DATABASE_URL"], row_factory=psycopg.rows.dict_row)
print(twoqueue.ledger_of(db), db.info.transaction_status.name)
`)
}

// A message with another type would be malformed for a verifier, or another message.
func TestPythonRefusesTargetsAndPropertiesOfOtherTypes(t *testing.T) {
	t.Parallel()
	got := program.RunCmd(t, python(t, "-c", `
import twoqueue
def send(exchange="orders", routing_key="", order_key="", **properties):
    try:
        twoqueue.stage(twoqueue.Message(exchange, routing_key, b"", properties, order_key=order_key, id=twoqueue.uuid7()), twoqueue.uuid7())
    except twoqueue.Refused:
        return
    print(exchange, routing_key, order_key, properties)
send(exchange=None, routing_key="queue")
send(routing_key=None)
send(order_key=b"key")
send(priority=1.5)
send(priority=True)
send(priority="7")
send(timestamp="1700000000")
send(expiration=1000)
send(user_id=b"shop")
send(reply_to=b"amq.rabbitmq.reply-to")
`))
	if got.Code != 0 || got.Stdout != "" {
		t.Errorf("exit code %d, not refused: %s%s", got.Code, got.Stdout, got.Stderr)
	}
}

func TestPythonsGroupsAreBoundedWithTheirHeaders(t *testing.T) {
	t.Parallel()
	got := program.RunCmd(t, python(t, "-c", `
import twoqueue
messages = [twoqueue.Message("", "q", headers={"large": "x" * 60_000}, id=twoqueue.uuid7()) for _ in range(5)]
staged = [(m, twoqueue.stage(m, twoqueue.uuid7())) for m in messages]
print([len(batch) for _, batch in twoqueue.Sender(None, None, "staging")._batches(staged)])
`))
	if got.Code != 0 || strings.TrimSpace(got.Stdout) != "[2, 2, 1]" {
		t.Errorf("exit code %d, groups of %s%s", got.Code, got.Stdout, got.Stderr)
	}
}

// The code of the README, as a program whose logins have only the rights of a sender.
func TestTheReadmesPythonCodeSends(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile(senderFolder + "/README.md")
	must(t, err)
	_, code, _ := strings.Cut(string(readme), "```python\n")
	code, _, ok := strings.Cut(code, "```")
	if !ok {
		t.Fatal("the README has no code")
	}
	w := newWorld(t, bridge.Topology{Queue: "twoqueue"})
	_, err = w.DB.ExecContext(t.Context(), `DROP TABLE orders; CREATE TABLE orders (name text)`)
	must(t, err)
	w.Queue("emails", nil)
	v := w.Verify(verifier.Options{})
	cmd := python(t, "-c", code)
	cmd.Env = append(cmd.Env, "DATABASE_URL="+w.login(), "AMQP_URL="+servertest.User(t, w.AMQP, "", `^amq\.default$`, ""))
	if got := program.RunCmd(t, cmd); got.Code != 0 {
		t.Fatalf("exit code %d: %s%s", got.Code, got.Stdout, got.Stderr)
	}
	d := w.Receive("emails", 1)[0]
	id, err := uuid.Parse(d.MessageId)
	if made := wire.MadeAt(id); err != nil || time.Since(made).Abs() > stage.Patience {
		t.Errorf("the ID %s was made at %v (%v)", d.MessageId, made, err)
	}
	if string(d.Body) != `{"order": "two pears"}` || d.ContentType != "application/json" || len(d.Headers) > 0 {
		t.Errorf("received %q, type %s, headers %v", d.Body, d.ContentType, d.Headers)
	}
	v.Stop()
}
