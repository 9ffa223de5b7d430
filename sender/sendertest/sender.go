package sendertest

import (
	"context"
	"database/sql"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/sender"
)

// A Sender is a *sender.Sender without a broker, and the test's view of it. Give the application
// its field Sender. Any number of goroutines may use it.
type Sender struct {
	*sender.Sender
	// DB is a database in memory, see the package comment. It is nil if On has made the Sender.
	DB *sql.DB

	t         testing.TB
	broker    *broker
	rows      *rows
	committed func() ([]uuid.UUID, error) // the committed IDs of rows, in order
	memory    *memory                     // nil if On has made the Sender
}

// New returns a Sender with a database in memory. opts may be nil. The Sender ends with the test.
func New(t testing.TB, opts *sender.Options) *Sender {
	t.Helper()
	memory := newMemory()
	rows := newRows()
	s := start(t, &memoryLedger{memory, rows, uuid.New()}, rows, opts)
	s.memory, s.DB = memory, sql.OpenDB(memory)
	t.Cleanup(func() { _ = s.DB.Close() })
	s.committed = func() ([]uuid.UUID, error) { return memory.ids(), nil }
	return s
}

// On returns a Sender that records in your own database, through its ledger. The ledger's tables
// must exist. opts may be nil. The Sender ends with the test.
func On(t testing.TB, ledger driver.Ledger, opts *sender.Options) *Sender {
	t.Helper()
	rows := newRows()
	s := start(t, &realLedger{ledger, rows}, rows, opts)
	s.committed = func() ([]uuid.UUID, error) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		all := rows.ids()
		found, _, err := ledger.Committed(ctx, all)
		return slices.DeleteFunc(all, func(id uuid.UUID) bool { return !slices.Contains(found, id) }), err
	}
	return s
}

// patience bounds the test's waits for the database and at its end.
const patience = 10 * time.Second

func start(t testing.TB, ledger driver.Recorder, rows *rows, opts *sender.Options) *Sender {
	t.Helper()
	s := &Sender{t: t, broker: &broker{done: make(chan struct{}), staged: make(map[uuid.UUID]bridge.Message)}, rows: rows}
	var err error
	if s.Sender, err = sender.New(ledger, s.broker, opts); err != nil {
		t.Fatalf("sendertest: %v", err)
	}
	t.Cleanup(func() { // no goroutine outlives the test
		s.broker.close()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Flush(ctx); err != nil {
			t.Errorf("sendertest: %v", err)
		}
	})
	return s
}

// Committed returns the messages whose transactions have committed and that were not cancelled
// since, as their receivers see them. They are in the order of the commits, or, for a Sender of On, in
// the order in which they were recorded. A delayed message has its NotBefore, and no time passes for
// it. Committed fails the test if a transaction committed without its message, which the bridge
// would have lost, or if the end of a transaction is unknown (see the package comment).
func (s *Sender) Committed() []bridge.Message {
	s.t.Helper()
	if s.memory != nil && s.rows.foreign() {
		s.t.Fatal("sendertest: a message was recorded in a transaction that is not of Sender.DB, so its outcome is unknown: use Sender.DB, On, or Recorded")
	}
	ids, err := s.committed()
	if err != nil {
		s.t.Fatalf("sendertest: %v", err)
	}
	return s.messages(ids, func(id uuid.UUID) {
		s.t.Errorf("sendertest: message %s is lost: its transaction has committed, and the broker has not confirmed it; roll back after an error of SendTx, StageTx or Wait", id)
	})
}

// Recorded returns all messages that were recorded and are carried or staged, whether or not their
// transactions committed, in the order in which they were recorded.
func (s *Sender) Recorded() []bridge.Message {
	s.t.Helper()
	return s.messages(s.rows.ids(), func(uuid.UUID) {})
}

func (s *Sender) messages(ids []uuid.UUID, absent func(uuid.UUID)) []bridge.Message {
	s.t.Helper()
	var out []bridge.Message
	for _, id := range ids {
		message, ok := s.rows.carried(id)
		if !ok {
			message, ok = s.broker.message(id)
		}
		if !ok {
			absent(id)
			continue
		}
		out = append(out, message)
	}
	return out
}

// FailPublish makes every publication fail with err, until it is called with nil: ErrOut,
// ErrRefused, or an error of package bridge, such as bridge.ErrReturned for a missing queue. After
// an outage the sender may carry messages for one more second.
func (s *Sender) FailPublish(err error) { s.broker.failWith(err) }

// LoseCommit loses the answer of the next COMMIT on Sender.DB: the connection breaks. The argument
// decides whether the transaction has committed. The error of InTx is sender.ErrCommitUnknown.
func (s *Sender) LoseCommit(committed bool) {
	s.t.Helper()
	if s.memory == nil {
		s.t.Fatal("sendertest: LoseCommit needs Sender.DB; a Sender of On has none")
	}
	s.memory.loseCommit(committed)
}

// rows are the recorded rows, whether or not their transactions committed.
type rows struct {
	mu       sync.Mutex
	order    []uuid.UUID
	holds    map[uuid.UUID]bridge.Message // of carried messages
	onlyRow  map[uuid.UUID]bool           // carried, and the sender publishes no copy
	isAbsent bool                         // a row is in no transaction of the memory
}

func newRows() *rows {
	return &rows{holds: make(map[uuid.UUID]bridge.Message), onlyRow: make(map[uuid.UUID]bool)}
}

func (r *rows) add(ledger uuid.UUID, entries []driver.Entry, foreign bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range entries {
		r.order = append(r.order, e.ID)
		if e.Message == nil {
			continue
		}
		staged, err := wire.ReadRecord(ledger, e.Message)
		if err != nil {
			return err
		}
		staged.Message.NotBefore = e.NotBefore
		r.holds[e.ID], r.onlyRow[e.ID] = staged.Message, e.Unpublished || !e.NotBefore.IsZero()
	}
	r.isAbsent = r.isAbsent || foreign
	return nil
}

// ids returns the IDs, each once: an attempt may be repeated with the same ID.
func (r *rows) ids() (ids []uuid.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := make(map[uuid.UUID]bool)
	for _, id := range r.order {
		if !seen[id] {
			ids = append(ids, id)
		}
		seen[id] = true
	}
	return ids
}

func (r *rows) carried(id uuid.UUID) (bridge.Message, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	message, ok := r.holds[id]
	return message, ok
}

// unpublished reports whether the message is only in its row.
func (r *rows) unpublished(id uuid.UUID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.onlyRow[id]
}

func (r *rows) foreign() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isAbsent
}
