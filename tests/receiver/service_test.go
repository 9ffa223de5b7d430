package receiver_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

var (
	orders = flag.Int("messages", 0, "how many orders the services handle among faults by chance; 0: each fault once, a thousand orders")
	on     = flag.String("database", "postgres", "postgres or mariadb")
)

const (
	perFault = 1000 / 6
	services = 2

	// One order in this number
	twice  = 50  // is delivered twice
	large  = 20  // has a reply that its row does not carry
	early  = 100 // cannot be billed before the test lets it
	poison = 150 // cannot be read
)

// fault happens to the services while they work on some orders. Some of these orders are held in
// the middle of their transactions until release is called.
type fault struct {
	name string
	do   func(w *world, n int, release func()) // n is one of the services
}

var faults = []fault{
	{"SIGKILL", func(w *world, n int, _ func()) {
		w.services[n].KillRunning()
		w.serve(n)
	}},
	{"SIGSTOP, and the broker takes it for dead", func(w *world, n int, release func()) {
		w.services[n].Signal(syscall.SIGSTOP)
		other := w.services[(n+1)%services]
		started := heard(other.Stderr.String(), sessionStarted)
		w.closeConnections()
		other.Read(&other.Stderr, "that it consumes again", func(said string) bool { return heard(said, sessionStarted) > started })
		release()
		w.Eventually("the other service has all orders", func() bool { return w.Depth(queue) == 0 })
		w.services[n].Signal(syscall.SIGCONT)
	}},
	{"connections closed by the broker", func(w *world, _ int, _ func()) {
		started := w.heard(sessionStarted)
		w.closeConnections()
		w.Eventually("the services consume again", func() bool { return w.heard(sessionStarted) >= started+services })
	}},
	{"sessions of the database ended", func(w *world, _ int, _ func()) {
		if w.endSessions() == 0 {
			w.t.Error("no session was ended")
		}
	}},
	{"a full staging queue behind the reply", func(w *world, _ int, release func()) {
		release()
		limit := func(n int) {
			servertest.SetPolicy(w.t, w.AMQP, "length", "^"+staging+"$", map[string]any{"max-length": n, "overflow": "reject-publish"})
		}
		refused := w.heard(bridge.ErrNacked.Error())
		limit(1)
		w.verifier.Stop()
		w.publish(w.more(perFault))
		w.Eventually("a reply is refused", func() bool { return w.heard(bridge.ErrNacked.Error()) > refused })
		w.awaitInvoices(w.billable) // the rows carry the replies
		limit(1_000_000)
		w.Verify()
	}},
	{"SIGTERM", func(w *world, n int, release func()) {
		w.services[n].Signal(syscall.SIGTERM)
		release()
		if code := w.services[n].Await(); code != 0 {
			w.t.Errorf("after SIGTERM the exit code is %d", code)
		}
		w.serve(n)
	}},
}

const sessionStarted = "consumer session started"

func heard(said, text string) int { return strings.Count(said, text) }

// Everything around the service fails. In the end each order has one invoice and one reply, and
// the dead queue has exactly the orders that cannot be read.
func TestAServiceLosesAndRepeatsNothingUnderFaults(t *testing.T) {
	t.Parallel()
	kind, ok := databases[*on]
	if !ok {
		t.Fatalf("no database %q", *on)
	}
	w := newWorld(t, kind)
	for n := range services {
		w.serve(n)
		w.services[n].Hear(sessionStarted) // the first one has declared the queues
	}
	counts := make(map[string]int)
	for n := 0; n < len(faults) || len(w.planned) < *orders; n++ {
		f := faults[n%len(faults)]
		bodies := w.more(perFault)
		release := w.hold()
		inTheMiddle := w.billable - len(w.held)
		if n/len(faults)%2 == 1 { // the fault then meets the services at any point
			release()
			inTheMiddle = w.billable - 1 - rand.IntN(perFault/2)
		}
		w.publish(bodies)
		w.awaitInvoices(inTheMiddle)
		t.Logf("%s, after %d orders", f.name, len(w.planned))
		f.do(w, rand.IntN(services), release)
		release()
		w.letEarlyOnesThrough()
		counts[f.name]++
	}
	w.judge()
	t.Logf("%d orders, %d of them delivered twice, faults %v, %d starts of a service that found no broker or database", len(w.planned), w.copies, counts, w.ended)
}

// A user writes at most this much code.
func TestAServiceHasAtMost40Lines(t *testing.T) {
	source, err := os.ReadFile("service/main.go")
	must(t, err)
	_, code, found := strings.Cut(string(source), "\nfunc main() {")
	lines := 1
	for line := range strings.Lines(code) {
		if strings.TrimSpace(line) != "" {
			lines++
		}
	}
	if !found || lines > 40 {
		t.Errorf("the service has %d lines beside its imports", lines)
	}
}

// more plans n more orders.
func (w *world) more(n int) (bodies []string) {
	var numbers []string
	for range n {
		number := len(w.planned)
		body := fmt.Sprintf(`{"number": %d, "cents": %d}`, number, 100*number)
		switch {
		case number%poison == poison-1:
			body = fmt.Sprintf("order %d, please", number)
			w.poison = append(w.poison, body)
		case number%early == early-1:
			w.early = append(w.early, number)
		default:
			w.billable++
			numbers = append(numbers, fmt.Sprintf("(%d)", number))
			if number%large == 0 {
				body += strings.Repeat(" ", 10<<10)
			}
		}
		w.planned = append(w.planned, body)
		bodies = append(bodies, body)
	}
	w.exec(`INSERT INTO orders VALUES ` + strings.Join(numbers, ", "))
	return bodies
}

// hold keeps the services in the middle of transactions.
func (w *world) hold() (release func()) {
	w.t.Helper()
	first := len(w.planned) - perFault
	tx, err := w.DB.BeginTx(w.t.Context(), nil)
	must(w.t, err)
	w.held = nil
	for number := first; number < len(w.planned) && len(w.held) < 10; number++ {
		var n int
		if tx.QueryRowContext(w.t.Context(), fmt.Sprintf(`SELECT number FROM orders WHERE number = %d FOR UPDATE`, number)).Scan(&n) == nil {
			w.held = append(w.held, n)
		}
	}
	return sync.OnceFunc(func() { _ = tx.Rollback() })
}

// letEarlyOnesThrough inserts the rows of orders that arrived before them, so that they can be
// billed.
func (w *world) letEarlyOnesThrough() {
	w.t.Helper()
	if len(w.early) == 0 {
		return
	}
	var numbers []string
	for _, number := range w.early {
		numbers = append(numbers, fmt.Sprintf("(%d)", number))
	}
	w.exec(`INSERT INTO orders VALUES ` + strings.Join(numbers, ", "))
	w.billable += len(w.early)
	w.early = nil
}

// judge waits until every order is handled, stops everything, and compares.
func (w *world) judge() {
	w.t.Helper()
	w.awaitInvoices(w.billable)
	w.Eventually("no order waits", func() bool { return w.ready() == 0 && w.Depth(queue+".dead") >= len(w.poison) })
	for _, p := range w.services {
		if code := p.Stop(); code != 0 {
			w.t.Errorf("in the end the exit code is %d", code)
		}
	}
	if n := w.ready(); n > 0 {
		w.t.Errorf("%d orders are still in the queues", n)
	}
	w.Eventually("every reply has been forwarded", func() bool { return w.Rows() == 0 })
	w.verifier.Stop()
	w.WantNothingLeft(w.t)

	readable := make(map[int]bool)
	for number, body := range w.planned {
		if !slices.Contains(w.poison, body) {
			readable[number] = true
		}
	}
	ids, replied := w.replied()
	stage.CompareOnce(w.t, readable, w.billed())
	stage.CompareOnce(w.t, readable, replied)
	again := 0
	for _, copies := range ids {
		again += copies - 1
	}
	w.t.Logf("%d replies, %d of them delivered again", len(ids), again)
	w.judgeDead()
}

// billed returns the number of invoices of each order.
func (w *world) billed() map[int]int {
	w.t.Helper()
	rows, err := w.DB.QueryContext(w.t.Context(), `SELECT number, count(*) FROM invoices GROUP BY number`)
	must(w.t, err)
	defer rows.Close()
	billed := make(map[int]int)
	for rows.Next() {
		var number, n int
		must(w.t, rows.Scan(&number, &n))
		billed[number] = n
	}
	must(w.t, rows.Err())
	return billed
}

// replied returns the number of copies of each reply, by ID, and the number of different replies
// to each order.
func (w *world) replied() (ids map[string]int, replied map[int]int) {
	w.t.Helper()
	ids, replied = make(map[string]int), make(map[int]int)
	taken, err := w.Take(replies)
	must(w.t, err)
	for _, d := range taken {
		var order struct{ Number int }
		must(w.t, json.Unmarshal(d.Body, &order))
		if ids[d.MessageId]++; ids[d.MessageId] == 1 {
			replied[order.Number]++
		}
	}
	return ids, replied
}

// judgeDead checks that the dead queue has exactly the orders that cannot be read.
func (w *world) judgeDead() {
	w.t.Helper()
	taken, err := w.Take(queue + ".dead")
	must(w.t, err)
	missing := make(map[string]bool)
	for _, body := range w.poison {
		missing[body] = true
	}
	for _, d := range taken {
		if !slices.Contains(w.poison, string(d.Body)) {
			w.t.Errorf("in the dead queue is %q, headers %v", d.Body, d.Headers)
		}
		if d.Headers[wire.HeaderDeadReason] == nil {
			w.t.Errorf("%q has no reason", d.Body)
		}
		delete(missing, string(d.Body))
	}
	for body := range missing {
		w.t.Errorf("%q is not in the dead queue", body)
	}
}
