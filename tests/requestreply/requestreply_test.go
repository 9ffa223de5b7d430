package requestreply_test

import (
	"database/sql"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// A world is the broker and the databases of both services.
type world struct {
	t          *testing.T
	shop, bank *stage.Stage
	orders     int
}

func newWorld(t *testing.T, orders int) *world {
	t.Helper()
	vhost := servertest.Vhost(t)
	w := &world{t: t, orders: orders,
		shop: stage.On(t, stage.Postgres, vhost, bridge.Topology{Queue: "staging of the shop"}),
		bank: stage.On(t, stage.Postgres, vhost, bridge.Topology{Queue: "staging of the bank"})}
	for s, tables := range map[*stage.Stage]string{w.shop: shopTables, w.bank: bankTables} {
		w.must(migrate.Inbox(t.Context(), s.DB, migrate.PostgreSQL))
		_, err := s.DB.ExecContext(t.Context(), tables)
		w.must(err)
	}
	for _, queue := range []string{requests, replies} {
		w.shop.Queue(queue, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1_000_000})
	}
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// start starts a service, this test binary once more, that stops at a point, or never.
func (w *world) start(name string, stop point) *program.Process {
	w.t.Helper()
	s := w.bank
	if name == "shop" {
		s = w.shop
	}
	text, err := json.Marshal(brief{name, s.DatabaseURL, s.AMQP, s.Topology, w.orders, stop})
	w.must(err)
	self, err := os.Executable()
	w.must(err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), briefVariable+"="+string(text))
	return program.StartCmd(w.t, cmd)
}

// finish runs both services until nothing is left to be done, and checks what they
// have done.
func (w *world) finish() {
	w.t.Helper()
	queues := []string{requests, replies, w.shop.Topology.Queue, w.shop.Topology.WaitingQueue(),
		w.bank.Topology.Queue, w.bank.Topology.WaitingQueue()}
	for left := 1; left > 0; {
		shop, bank := w.start("shop", ""), w.start("bank", "")
		w.shop.Eventually("every order has its receipt, and no message waits", func() bool {
			ready := 0
			for _, queue := range queues {
				ready += w.shop.Depth(queue)
			}
			return ready == 0 && w.count(w.shop.DB, `SELECT count(DISTINCT id) FROM receipts`) == w.orders
		})
		for _, p := range []*program.Process{shop, bank} {
			p.Hear(stoppable)
			if code := p.Stop(); code != 0 {
				w.t.Fatalf("a service has ended with %d", code)
			}
		}
		left = 0
		for _, queue := range queues { // what was handed back
			left += w.left(queue)
		}
	}
	for what, got := range map[string]int{
		"orders":                  w.count(w.shop.DB, `SELECT count(*) FROM orders`),
		"payments":                w.count(w.bank.DB, `SELECT count(*) FROM payments`),
		"orders that were paid":   w.count(w.bank.DB, `SELECT count(DISTINCT id) FROM payments`),
		"receipts":                w.count(w.shop.DB, `SELECT count(*) FROM receipts WHERE body = 'paid'`),
		"orders with receipts":    w.count(w.shop.DB, `SELECT count(DISTINCT r.id) FROM receipts r JOIN orders o ON o.id = r.id`),
		"requests that were kept": w.count(w.bank.DB, `SELECT count(*) FROM bridge_inbox`),
		"replies that were kept":  w.count(w.shop.DB, `SELECT count(*) FROM bridge_inbox`),
	} {
		if got != w.orders {
			w.t.Errorf("%d %s, must be %d", got, what, w.orders)
		}
	}
	for _, s := range []*stage.Stage{w.shop, w.bank} {
		if n := s.Depth(s.Topology.DeadQueue()); n > 0 {
			w.t.Errorf("%d messages are in a dead queue", n)
		}
	}
}

func (w *world) count(db *sql.DB, query string) (n int) {
	w.t.Helper()
	w.must(db.QueryRowContext(w.t.Context(), query).Scan(&n))
	return n
}

// left is how many messages a queue holds when its consumers are gone.
func (w *world) left(queue string) (n int) {
	w.t.Helper()
	w.shop.Eventually("no consumer at "+queue, func() bool {
		q, err := w.shop.Channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		w.must(err)
		n = q.Messages
		return q.Consumers == 0
	})
	return n
}

func TestARequestAndItsReplyHappenOnceWhicheverServiceIsKilled(t *testing.T) {
	for _, c := range []struct {
		service string
		at      point
	}{
		{"shop", requestStaged},
		{"shop", requestCommitted},
		{"bank", requestTaken},
		{"bank", replyStaged},
		{"bank", replyCommitted},
		{"bank", requestAcked},
		{"shop", replyTaken},
		{"shop", receiptCommitted},
		{"shop", receiptAcked},
	} {
		t.Run(string(c.at), func(t *testing.T) {
			w := newWorld(t, 1)
			other := "shop"
			if c.service == "shop" {
				other = "bank"
			}
			bystander, victim := w.start(other, ""), w.start(c.service, c.at)
			victim.Read(&victim.Stdout, string(c.at), func(said string) bool { return said == string(c.at)+"\n" })
			victim.Kill()
			bystander.Kill()
			w.finish()
		})
	}
}

func TestRequestsAndRepliesHappenOnceUnderRandomKills(t *testing.T) {
	const orders, kills = 200, 8
	w := newWorld(t, orders)
	names := []string{"shop", "bank"}
	running := []*program.Process{w.start("shop", ""), w.start("bank", "")}
	for kill := range kills {
		// After some progress, not after some time.
		enough := orders * (kill + 1) / (kills + 2)
		w.shop.Eventually("some are paid", func() bool { return w.count(w.bank.DB, `SELECT count(*) FROM payments`) >= enough })
		one := rand.IntN(len(running))
		running[one].Kill()
		running[one] = w.start(names[one], "")
	}
	for _, p := range running {
		p.Kill()
	}
	w.finish()
}
