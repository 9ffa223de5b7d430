package property_test

import (
	"testing"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/twoqueue/twoqueue/tests/stage"
)

func TestExactlyTheCommittedMessagesAreDelivered(t *testing.T) {
	kinds := stage.Databases
	if testing.Short() {
		kinds = kinds[:1]
	}
	for _, kind := range kinds {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, kind)
			rapid.Check(t, w.check)
		})
	}
}

// check performs random actions, ends the open transactions, lets the verifiers finish, and
// checks the results.
func (w *world) check(t *rapid.T) {
	h := w.begin(t)
	defer h.abandon(t)
	t.Repeat(map[string]func(*rapid.T){
		"begin":                  h.begin,
		"send":                   h.send,
		"send with a key":        h.sendKeyed,
		"send again":             h.sendAgain,
		"fail to send":           h.failToSend,
		"set savepoint":          h.setSavepoint,
		"roll back to savepoint": h.rollBackToSavepoint,
		"release savepoint":      h.releaseSavepoint,
		"commit":                 h.commit,
		"roll back":              h.rollBack,
		"be slow":                h.beSlow,
		"catch up":               h.catchUp,
		"restart the verifier":   h.restart,
		"cut its connections":    h.cut,
	})
	for len(h.open) > 0 {
		h.end(t, h.open[0], rapid.Bool().Draw(t, "commits"))
	}
	h.finish(t)

	w.WantNothingLeft(t)
	copies, order := h.Delivered(t, h.target, func(d amqp.Delivery) bool { return string(d.Body) == h.target && len(d.Headers) == 0 })
	stage.Compare(t, h.committed, copies)
	for id, n := range copies {
		if most := h.most(id); n > most {
			t.Errorf("message %s was delivered %d times, and its attempts and the cuts explain %d; its group was %t", id, n, most, h.grouped[id])
		}
	}
	h.inOrder(t, order)
	h.wantNoRows(t)
	w.dirty = t.Failed()
}

// wantNoRows fails the test if a message has left a row that no verifier has reported. A verifier
// that stops while a transaction locks the row (on SQLite: while any transaction writes) leaves
// the row to the sweep.
func (h *history) wantNoRows(t *rapid.T) {
	told := 0
	for _, v := range h.verifiers() {
		told += v.State().Undeleted
	}
	for _, id := range h.IDs(t, `SELECT id FROM bridge_ledger`) {
		if h.copies[id] == 0 { // a proof interrupted in its COMMIT may leave its canary's row
			continue
		}
		if told--; told < 0 || !h.committed[id] {
			t.Errorf("the row of message %s is left in the ledger, which was committed: %t", id, h.committed[id])
		}
	}
}

// most returns how often a message may be delivered. Each attempt stages a copy: if an ID was
// rolled back and sent again, the queue may hold both copies. A cut doubles each copy that is
// unacked at that time: one has been forwarded or set aside, and one is redelivered. The end of a
// verifier that has set aside some messages of a group doubles copies too: the whole group is
// requeued.
func (h *history) most(id uuid.UUID) int {
	most := h.copies[id]
	if h.grouped[id] {
		for _, v := range h.verifiers() {
			if v.Stats().SetAside > 0 {
				most *= 2
			}
		}
	}
	return most
}
