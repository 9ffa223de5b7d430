package crash_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// The messages have committed: one by itself, or three in a group. A group is redelivered whole,
// and each of its messages is judged again separately.
func TestAVerifierIsKilledWith(t *testing.T) {
	for _, c := range []struct {
		what               string
		kinds              []stage.Database
		messages           int
		at, next           point // it stops at at, and must not reach next
		forwarded, dropped int64 // by the next verifier
		row                driver.Outcome
		twice              bool
	}{
		{"a message that it has looked up: it is looked up again", onPostgres, 1, lookedUp, forgets, 1, 0, driver.Committed, false},
		{"a message between confirm and DELETE: it comes twice, with the same ID", kinds, 1, forgets, forgot, 1, 0, driver.Committed, true},
		{"a message between DELETE and ack: it comes once", kinds, 1, forgot, "", 0, 1, driver.RolledBack, false},
		{"a group between confirm and DELETE: each member comes twice", onPostgres, 3, forgets, forgot, 3, 0, driver.Committed, true},
		{"a group between DELETE and ack: each member comes once", onPostgres, 3, forgot, "", 0, 3, driver.RolledBack, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			on(t, c.kinds, func(w *world) {
				ids := newIDs(c.messages)
				w.commit(ids...)
				id := ids[0]
				if c.at == forgot {
					id = ids[len(ids)-1]
				}
				p := w.start(brief{Role: aVerifier, Stops: map[point]uuid.UUID{c.at: id, c.next: id}})
				p.Says(c.at)
				if c.at == forgets {
					if w.Depth(w.target) == 0 {
						w.t.Error("no message is at the target before the DELETE")
					}
					w.WaitDepth(w.target, c.messages)
				}
				p.KillThere()
				w.wantOutcome(id, c.row) // without its row it seems rolled back
				w.wantHandedBack(1)
				w.wantStats(w.finish(), c.forwarded, c.dropped)
				var twice []uuid.UUID
				if c.twice {
					twice = ids
				}
				w.wantCheck(twice, nil)
			})
		})
	}
}

// The verifier dies in the waiting lookup, with both outcomes.
func TestAMessageSettledByAKilledVerifierIsLookedUpAgain(t *testing.T) {
	for _, commits := range []bool{true, false} {
		t.Run(map[bool]string{true: "committed", false: "rolled back"}[commits], func(t *testing.T) {
			onEach(t, func(w *world) {
				id := newIDs(1)[0]
				p := w.start(brief{Role: aVerifier, Stops: map[point]uuid.UUID{settles: id, settled: id},
					// Longer than the rest of the test, so that the first settle has an outcome.
					Options: verifier.Options{Prefetch: 2, SettleWait: stage.Patience, Patience: time.Hour}})
				w.warmUp()
				tx, err := place(w.t.Context(), w.DB, w.Sender, w.target, id)
				w.must("place order", err)
				p.Says(settles)
				p.Tell("go on")
				var forwarded, dropped int64
				if commits {
					w.must("commit", tx.Commit())
					forwarded = 1
				} else {
					w.must("roll back", tx.Rollback())
					dropped = 1
				}
				p.Says(settled)
				p.KillThere()
				w.wantHandedBack(1)
				w.wantStats(w.finish(), forwarded, dropped)
				w.wantOnce()
			})
		})
	}
}

func TestAVerifierKilledBetweenPublishAndConfirmDeliversTwiceWithTheSameID(t *testing.T) {
	on(t, onPostgres, func(w *world) {
		id := newIDs(1)[0]
		w.commit(newIDs(1)...) // forwarded first, which opens the publishing channel
		w.commit(id)
		valve, address := servertest.Through(w.t, w.AMQP)
		p := w.start(brief{Role: aVerifier, AMQP: address, Stops: map[point]uuid.UUID{lookedUp: id, forgets: id},
			Options: verifier.Options{Prefetch: 1, ConfirmTimeout: stage.Patience}}) // it publishes once
		p.Says(lookedUp)
		valve.HoldReplies()
		p.Tell("go on")
		w.WaitDepth(w.target, 2)
		p.KillThere()
		w.wantHandedBack(1)
		w.wantStats(w.finish(), 1, 0)
		w.wantCheck([]uuid.UUID{id}, nil)
	})
}

// The verifier deletes before it acks. So this one pretends to have deleted.
func TestAVerifierKilledBetweenAckAndDeleteLeavesAHarmlessRow(t *testing.T) {
	on(t, onPostgres, func(w *world) {
		id, next := newIDs(1)[0], newIDs(1)[0]
		w.commit(id)
		w.commit(next)
		w.killAt(lookedUp, brief{Role: aVerifier, Stops: map[point]uuid.UUID{deletePretended: id, lookedUp: next},
			// The broker delivers the next message only after the ack of the first.
			Options: verifier.Options{Prefetch: 1}})
		w.wantHandedBack(1)
		w.wantStats(w.finish(), 1, 0)
		w.wantCheck(nil, []uuid.UUID{id})
	})
}

// This crash is not in package bridge's table: the waiting queue has the copy, and the original
// is not acked. Both are judged by the same row, so both are forwarded, or the second is dropped.
func TestAVerifierKilledWhileSettingAsideLosesNothing(t *testing.T) {
	on(t, onPostgres, func(w *world) {
		id := newIDs(1)[0]
		stats := w.killWhileSettingAside(verifier.Options{SettleWait: 50 * time.Millisecond}, id)
		if stats.Forwarded+stats.Dropped != 2 || stats.Forwarded == 0 {
			w.t.Errorf("of two copies %d were forwarded and %d dropped", stats.Forwarded, stats.Dropped)
		}
	})
}

// The same for several messages. A settler has at most one of them; the others go to the waiting
// queue together, in a group.
func TestAVerifierKilledWhileSettingAGroupAsideLosesNothing(t *testing.T) {
	on(t, onPostgres, func(w *world) {
		ids := newIDs(5)
		stats := w.killWhileSettingAside(verifier.Options{Settlers: 1, SettleWait: stage.Patience}, ids...)
		if copies := stats.Forwarded + stats.Dropped; copies < 9 || copies > 10 || stats.Forwarded < 5 {
			w.t.Errorf("of nine or ten copies %d were forwarded and %d dropped", stats.Forwarded, stats.Dropped)
		}
	})
}

// killWhileSettingAside kills a verifier when the waiting queue has one copy, of some or all of
// these messages, and the verifier has no confirm yet. It returns the work of the verifiers that
// follow.
func (w *world) killWhileSettingAside(options verifier.Options, ids ...uuid.UUID) (stats verifier.Stats) {
	w.t.Helper()
	options.Prefetch, options.Patience = 1, time.Millisecond
	valve, address := servertest.Through(w.t, w.AMQP)
	// At the first lookup no message has been set aside. Later it may happen before a settle or
	// after one.
	p := w.start(brief{Role: aVerifier, AMQP: address, Stops: map[point]uuid.UUID{asked: ids[0]}, Options: options})
	w.warmUp()
	tx, err := place(w.t.Context(), w.DB, w.Sender, w.target, ids...)
	w.must("place orders", err)
	p.Says(asked)
	valve.HoldReplies()
	p.Tell("go on")
	w.waitAllMessages(w.Topology.WaitingQueue(), 1)
	p.KillThere()
	w.wantHandedBack(2)
	w.must("commit", tx.Commit())
	stats = w.finish()
	w.wantOnceOrTwice()
	return stats
}

// warmUp sends an order through the verifier until its row is gone. Then the verifier has opened
// its channels, and on SQLite it has started before a transaction of the test can block it. With
// a prefetch of one, the verifier's next message also proves that the broker has this one's ack.
func (w *world) warmUp() {
	w.t.Helper()
	w.commit(newIDs(1)...)
	w.Eventually("the verifier works", func() bool { return w.Rows() == 0 && w.Depth(w.target) == 1 })
}

// waitAllMessages waits until a queue holds n messages, ready or unacked. AMQP counts only the
// ready ones.
func (w *world) waitAllMessages(queue string, n int) {
	w.t.Helper()
	_, vhost, _ := strings.Cut(strings.TrimPrefix(w.AMQP, "amqp://"), "/")
	w.Eventually(queue+" has the message", func() bool {
		messages, err := servertest.RabbitMQ(w.t).Queues(context.Background(), vhost, "messages")
		w.must("list queues", err)
		return messages[queue] == strconv.Itoa(n)
	})
}
