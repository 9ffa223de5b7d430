package property_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// history is one check: the actions so far, and the results that must follow.
type history struct {
	*world
	ctx      context.Context // of its transactions
	cancel   func()
	open     []*transaction
	verifier *worker
	retired  []*worker // may still be draining
	mayCut   bool
	sender   *sender.Sender

	committed  map[uuid.UUID]bool
	rolledBack []uuid.UUID        // and not sent again
	copies     map[uuid.UUID]int  // that may be staged or delivered; see most
	grouped    map[uuid.UUID]bool // sent together with others
	keyed      map[uuid.UUID]*keyed
	clock      int // counts the events of messages with a key
}

// transaction is an open transaction. sent lists its messages by the savepoint after which they
// were sent; the first list is for messages before any savepoint.
type transaction struct {
	*sql.Tx
	ctx  context.Context
	sent [][]uuid.UUID
}

// GoString returns the text that rapid prints for a drawn transaction.
func (tx *transaction) GoString() string {
	return fmt.Sprintf("transaction %p: %d messages, %d savepoints", tx, len(slices.Concat(tx.sent...)), len(tx.sent)-1)
}

func (h *history) begin(t *rapid.T) {
	if len(h.open) >= h.mostOpen() {
		t.Skip("enough transactions are open")
	}
	tx, err := h.DB.BeginTx(h.ctx, nil)
	must(t, "begin", err)
	h.open = append(h.open, &transaction{tx, h.ctx, make([][]uuid.UUID, 1)})
}

// pick draws an open transaction.
func (h *history) pick(t *rapid.T) *transaction {
	if len(h.open) == 0 {
		t.Skip("no transaction is open")
	}
	return rapid.SampledFrom(h.open).Draw(t, "transaction")
}

// send sends some messages, some of them with IDs given by the caller.
func (h *history) send(t *rapid.T) {
	tx := h.pick(t)
	given := rapid.SliceOfN(rapid.Bool(), 1, 5).Draw(t, "IDs given")
	ids := make([]uuid.UUID, len(given))
	for i, given := range given {
		if given {
			ids[i] = uuid.New()
		}
	}
	h.sendIDs(t, tx, "", ids...)
}

// sendAgain sends a rolled-back message without a key again, with its ID.
func (h *history) sendAgain(t *rapid.T) {
	if len(h.rolledBack) == 0 {
		t.Skip("nothing was rolled back")
	}
	tx := h.pick(t)
	i := rapid.IntRange(0, len(h.rolledBack)-1).Draw(t, "message")
	id := h.rolledBack[i]
	h.rolledBack = slices.Delete(h.rolledBack, i, i+1)
	h.sendIDs(t, tx, "", id)
}

func (h *history) sendIDs(t *rapid.T, tx *transaction, key string, ids ...uuid.UUID) {
	messages := h.messages(ids)
	for i := range messages {
		messages[i].OrderKey = key
	}
	h.clock++
	sent, err := h.sender.SendTx(h.ctx, bridge.SQL(tx), messages...)
	must(t, "send", err)
	for i, id := range sent {
		if key != "" {
			h.keyed[id] = &keyed{key: key, tx: tx, sent: h.clock, position: i}
		}
	}
	last := len(tx.sent) - 1
	tx.sent[last] = append(tx.sent[last], sent...)
	for i, id := range sent {
		h.copies[id]++
		h.grouped[id] = h.grouped[id] || h.sender == h.Sender && len(sent) > 1
		if ids[i] != uuid.Nil && ids[i] != id {
			t.Fatalf("the ID %s was given, and is %s", ids[i], id)
		}
	}
}

// failToSend sends the same ID twice, which fails, and undoes that by rolling back to a
// savepoint.
func (h *history) failToSend(t *rapid.T) {
	tx := h.pick(t)
	id := uuid.New()
	tx.exec(t, "SAVEPOINT attempt")
	_, err := h.sender.SendTx(h.ctx, bridge.SQL(tx), h.messages([]uuid.UUID{id, id})...)
	if !errors.Is(err, bridge.ErrDuplicateID) {
		t.Fatalf("the same ID twice: %v", err)
	}
	tx.exec(t, "ROLLBACK TO SAVEPOINT attempt")
}

// messages returns messages whose content is the same in every attempt.
func (h *history) messages(ids []uuid.UUID) []bridge.Message {
	out := make([]bridge.Message, len(ids))
	for i, id := range ids {
		out[i] = bridge.Message{ID: id, RoutingKey: h.target, Publishing: amqp.Publishing{Body: []byte(h.target)}}
	}
	return out
}

func (h *history) setSavepoint(t *rapid.T) {
	tx := h.pick(t)
	tx.exec(t, fmt.Sprintf("SAVEPOINT s%d", len(tx.sent)))
	tx.sent = append(tx.sent, nil)
}

// savepoint draws one of a transaction's savepoints.
func (h *history) savepoint(t *rapid.T) (*transaction, int) {
	tx := h.pick(t)
	if len(tx.sent) == 1 {
		t.Skip("it has no savepoint")
	}
	return tx, rapid.IntRange(1, len(tx.sent)-1).Draw(t, "savepoint")
}

func (h *history) rollBackToSavepoint(t *rapid.T) {
	tx, n := h.savepoint(t)
	tx.exec(t, fmt.Sprintf("ROLLBACK TO SAVEPOINT s%d", n))
	h.giveUp(slices.Concat(tx.sent[n:]...))
	tx.sent = append(tx.sent[:n], nil) // the savepoint itself stays
}

func (h *history) releaseSavepoint(t *rapid.T) {
	tx, n := h.savepoint(t)
	tx.exec(t, fmt.Sprintf("RELEASE SAVEPOINT s%d", n))
	kept := slices.Concat(tx.sent[n-1:]...)
	tx.sent = append(tx.sent[:n-1], kept)
}

func (h *history) commit(t *rapid.T)   { h.end(t, h.pick(t), true) }
func (h *history) rollBack(t *rapid.T) { h.end(t, h.pick(t), false) }

func (h *history) end(t *rapid.T, tx *transaction, commits bool) {
	h.open = slices.DeleteFunc(h.open, func(other *transaction) bool { return other == tx })
	sent := slices.Concat(tx.sent...)
	if !commits {
		must(t, "roll back", tx.Rollback())
		h.giveUp(sent)
		return
	}
	must(t, "commit", tx.Commit())
	h.clock++
	for _, id := range sent {
		h.committed[id] = true
		if k := h.keyed[id]; k != nil {
			k.committed = h.clock
		}
	}
}

// giveUp records messages that were rolled back. A message with a key is not sent again: with the
// same ID it would count as the first copy, at the wrong place (package bridge).
func (h *history) giveUp(ids []uuid.UUID) {
	for _, id := range ids {
		if h.keyed[id] == nil {
			h.rolledBack = append(h.rolledBack, id)
		}
	}
}

// catchUp waits until all committed messages have arrived, whatever else is open. Excepted are
// messages behind one of an open transaction with the same key. On SQLite a starting verifier
// waits for the open transaction.
func (h *history) catchUp(t *rapid.T) {
	if len(h.open) > 0 && h.mostOpen() == 1 {
		t.Skip("a transaction keeps a verifier from starting")
	}
	free := 0
	for id := range h.committed {
		if !h.held(h.keyed[id]) {
			free++
		}
	}
	servertest.Eventually(t, "all committed messages have arrived", func() bool { return h.Depth(h.target) >= free })
}

// beSlow lets open transactions outlast the verifier's patience. The pause is part of the
// history; no check relies on its length.
func (h *history) beSlow(t *rapid.T) {
	h.pick(t)
	time.Sleep(3 * patience)
}

// restart replaces the verifier. The old one may have to wait for a transaction; it finishes its
// work beside the new one.
func (h *history) restart(t *rapid.T) {
	h.verifier.cancel()
	h.retired = append(h.retired, h.verifier)
	h.verifier = h.startVerifier(t)
}

// cut closes all connections of the verifiers to the broker.
func (h *history) cut(t *rapid.T) {
	if !h.mayCut {
		t.Skip("not in this history")
	}
	h.valve.Cut()
	for id := range h.copies {
		h.copies[id] *= 2
	}
}

func (tx *transaction) exec(t *rapid.T, statement string) {
	_, err := tx.ExecContext(tx.ctx, statement)
	must(t, statement, err)
}

func must(t *rapid.T, what string, err error) {
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
