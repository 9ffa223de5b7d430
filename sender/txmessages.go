package sender

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
)

// TxMessages collects the messages of one transaction, in memory. It is for code that begins and
// ends transactions of another kind, such as package pgxsender.
type TxMessages struct {
	ctx    context.Context // the parent of the messages' spans
	sender *Sender
	tx     bridge.Tx

	mu      sync.Mutex
	over    bool // no further messages are accepted
	unsent  []encoded
	staging sync.WaitGroup // running calls of Stage
	staged  []*Staged
	failed  error // error of the first Send or Stage that failed
}

// TxMessages returns an empty TxMessages for a transaction that has begun. Options.Tracer gets ctx
// with the messages of Send.
func (s *Sender) TxMessages(ctx context.Context, tx bridge.Tx) *TxMessages {
	return &TxMessages{ctx: ctx, sender: s, tx: tx}
}

// errOver: the function that was given to InTx has returned.
var errOver = fmt.Errorf("the function given to InTx has returned: %w", sql.ErrTxDone)

// errCutShort: a panic or runtime.Goexit ended a call of Send or Stage. A caller that recovers must
// not commit, because the messages of that call are missing.
var errCutShort = errors.New("send: the transaction must roll back: a call of Send or Stage ended by a panic or runtime.Goexit")

// Send is Tx.Send.
func (t *TxMessages) Send(msgs ...bridge.Message) ([]uuid.UUID, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return nil, fmt.Errorf("send: nothing sent: %w", errOver)
	}
	err := errCutShort
	defer func() { t.fail(err) }()
	messages, err := t.sender.encode(t.ctx, msgs)
	if err != nil {
		return nil, err
	}
	t.unsent = append(t.unsent, messages...)
	return idsOf(messages), nil
}

// fail stores the first error. The caller holds mu.
func (t *TxMessages) fail(err error) {
	if t.failed == nil {
		t.failed = err
	}
}

// Stage is Tx.Stage.
func (t *TxMessages) Stage(ctx context.Context, msgs ...bridge.Message) ([]uuid.UUID, error) {
	t.mu.Lock()
	if t.over {
		t.mu.Unlock()
		return nil, fmt.Errorf("stage: nothing sent: %w", errOver)
	}
	t.staging.Add(1)
	first := t.takeEarlier(msgs)
	t.mu.Unlock()
	defer t.staging.Done()
	var staged *Staged
	err := errCutShort
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if err == nil {
			t.staged = append(t.staged, staged)
		}
		t.fail(err)
	}()
	if staged, err = t.sender.stage(ctx, t.tx, first, msgs); err != nil {
		return nil, err
	}
	return staged.IDs()[len(first):], nil
}

// takeEarlier removes and returns earlier messages of Send that have an order key of these messages:
// they must be staged first. The caller holds mu.
func (t *TxMessages) takeEarlier(msgs []bridge.Message) (first []encoded) {
	keys := make(map[string]bool)
	for _, m := range msgs {
		if m.OrderKey != "" {
			keys[m.OrderKey] = true
		}
	}
	t.unsent = slices.DeleteFunc(t.unsent, func(m encoded) bool {
		if !keys[m.orderKey] {
			return false
		}
		first = append(first, m)
		return true
	})
	return first
}

// End ends the collection: Send and Stage then return an error that wraps sql.ErrTxDone. End
// returns when no Stage is running any more.
func (t *TxMessages) End() {
	t.stop()
	t.staging.Wait()
}

func (t *TxMessages) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
}

// Err returns an error that wraps sql.ErrTxDone after End, and nil before.
func (t *TxMessages) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return errOver
	}
	return nil
}

// Confirm ends the collection, records and stages the messages of Send, and waits until every message
// is confirmed or carried. The transaction may commit only if the error is nil (rule 2 of package
// bridge). The errors are as from SendTx.
func (t *TxMessages) Confirm(ctx context.Context) error {
	t.End()
	if t.failed != nil {
		return t.failed
	}
	last, err := t.sender.stage(ctx, t.tx, t.unsent, nil)
	if err != nil {
		return err
	}
	for _, staged := range append(t.staged, last) {
		if err := staged.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// CommitError classifies the error of a COMMIT. The result is ErrCommitUnknown, unless the COMMIT
// was not sent because the transaction had ended before (sql.ErrTxDone), or the server itself has
// answered that it rolled back: by an SQLSTATE of class 23 (a deferred constraint) or 40
// (serialization failure, deadlock), except 40003, 'completion unknown', or by ROLLBACK, since an
// earlier statement had failed. The driver's error must have a method SQLState or be one of the
// texts in failedBefore, as with pgx and lib/pq. CommitError returns nil for nil.
func CommitError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("commit transaction: not sent: the transaction had ended before: %w", err)
	case refused(err), failedBefore(err):
		return fmt.Errorf("commit transaction: rolled back: %w", err)
	}
	return fmt.Errorf("commit transaction: %w: %w", ErrCommitUnknown, err)
}

// failedBefore reports whether PostgreSQL answered the COMMIT of a failed transaction with ROLLBACK
// (pgx), or the driver sent a ROLLBACK instead (lib/pq). Package sender imports no driver, so it
// recognizes these errors by their texts: pgx.ErrTxCommitRollback and pq.ErrInFailedTransaction.
func failedBefore(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		switch err.Error() {
		case "commit unexpectedly resulted in rollback",
			"pq: could not complete operation in a failed transaction",
			"pq: Could not complete operation in a failed transaction": // lib/pq 1.10
			return true
		}
	}
	return false
}

func refused(err error) bool {
	var answer interface{ SQLState() string }
	if !errors.As(err, &answer) {
		return false
	}
	state := answer.SQLState()
	return state != "40003" && (strings.HasPrefix(state, "23") || strings.HasPrefix(state, "40"))
}
