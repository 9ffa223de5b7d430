package parts

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/sender/pgxsender"
)

// A Transaction places orders, each with a message.
type Transaction struct {
	Orders   []Order
	Undone   []Order // placed before the others; a rollback to a savepoint undoes them
	Style    Style
	Conflict Conflict
	Items    [2]int        // the rows of the stock that a conflict uses
	Hold     time.Duration // between the last confirm and the end
	RollBack bool
}

// An Order is a row of the business table, with its message.
type Order struct {
	ID  uuid.UUID
	To  bridge.Target
	Key string // its message's order key; the order then has the next number of this key

	NotBefore time.Time // its message's earliest time of arrival, in whole milliseconds
}

// message returns the order's message.
func (o Order) message() bridge.Message {
	m := Message(o.ID, o.To)
	m.OrderKey, m.NotBefore = o.Key, o.NotBefore
	return m
}

// again returns the transaction for another attempt. Messages with an order key get new IDs.
func (t Transaction) again() Transaction {
	t.Orders = slices.Clone(t.Orders)
	for i := range t.Orders {
		if t.Orders[i].Key != "" {
			t.Orders[i].ID = uuid.Must(uuid.NewV7())
		}
	}
	return t
}

// Style is the way in which a transaction sends.
type Style string

// The styles.
const (
	WithSendTx   Style = "SendTx"   // also if Style is empty
	WithStageTx  Style = "StageTx"  // each message is staged early and awaited after the last order
	WithInTx     Style = "InTx"     // by Send
	WithStage    Style = "Tx.Stage" // in InTx, each message early
	WithPgx      Style = "pgx"      // InTx of package pgxsender, on PostgreSQL; else WithInTx
	WithPgxStage Style = "pgx, Stage"
)

// Conflict is the way in which a transaction conflicts with others.
type Conflict string

// The conflicts.
const (
	NoConflict    Conflict = ""
	Serialization Conflict = "serialization" // each of two transactions changes a row that the other has read
	Deadlock      Conflict = "deadlock"      // two transactions lock the same rows in opposite orders
	LockTimeout   Conflict = "lock time-out" // a transaction waits too long for a row
)

// Stock is the number of rows that transactions conflict over.
const Stock = 3

// limit bounds one transaction; flushLimit bounds the publication of carried messages at the end.
const (
	limit      = 30 * time.Second
	flushLimit = 5 * time.Second
)

type shop struct {
	db       *sql.DB
	pool     *pgxpool.Pool // nil if the database is not PostgreSQL
	database Database
	sender   *sender.Sender
}

func send(ctx context.Context, b Brief) error {
	db, database, ledger, err := openLedger(ctx, b)
	if err != nil {
		return err
	}
	defer db.Close()
	broker, err := openBroker(ctx, b)
	if err != nil {
		return err
	}
	defer broker.Close()
	s, err := sender.New(ledger, broker, senderOptions(b))
	if err != nil {
		return err
	}
	shop := &shop{db, nil, database, s}
	if database.native {
		if shop.pool, err = pgxpool.New(ctx, b.Database); err != nil {
			return err
		}
		defer shop.pool.Close()
	}
	note("ready")
	var workers sync.WaitGroup
	for _, t := range b.Script {
		transact := func() { _ = shop.transact(ctx, t) } // the databases show its outcome
		if b.AtOnce {
			workers.Go(transact)
		} else {
			transact()
		}
	}
	for i := range b.Workers {
		random := rand.New(rand.NewPCG(b.Seed, uint64(i)))
		workers.Go(func() {
			var delayed []uuid.UUID
			for ctx.Err() == nil {
				t := invent(random, b.Targets, b.Delayed)
				if shop.try(ctx, t, random) && !t.RollBack {
					delayed = append(delayed, t.delayed()...)
				}
				for len(delayed) > 0 && random.IntN(2) == 0 { // some of the delayed messages are due by now
					i := random.IntN(len(delayed))
					shop.cancel(context.WithoutCancel(ctx), delayed[i])
					delayed = slices.Delete(delayed, i, i+1)
				}
				delayed = delayed[max(0, len(delayed)-mostDelayed):]
				Rest(ctx, time.Duration(random.Int64N(1+int64(b.Pause))))
			}
		})
	}
	workers.Wait()
	flushing, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushLimit)
	defer cancel()
	if err := s.Flush(flushing); err != nil { // unpublished messages are in their rows
		note("flush: %v", err)
	}
	return nil
}

// try runs one transaction to its end, even if ctx ends meanwhile. It sometimes retries a failed
// one with the same IDs, which a caller may do except for messages with an order key. It reports
// whether the last attempt returned no error.
func (s *shop) try(ctx context.Context, t Transaction, random *rand.Rand) bool {
	for {
		err := s.transact(context.WithoutCancel(ctx), t)
		if err == nil {
			return true
		}
		Rest(ctx, time.Duration(random.IntN(300))*time.Millisecond)
		if ctx.Err() != nil || random.IntN(3) > 0 {
			return false
		}
		t = t.again()
	}
}

// mostDelayed is the most delayed messages that a worker remembers in order to cancel some of them.
const mostDelayed = 20

// delayed returns the IDs of the delayed messages.
func (t Transaction) delayed() (ids []uuid.UUID) {
	for _, o := range t.Orders {
		if !o.NotBefore.IsZero() {
			ids = append(ids, o.ID)
		}
	}
	return ids
}

// cancel cancels a message and deletes its order in one transaction. If Cancel reports success and
// the message still arrives, the judge finds no order for it.
func (s *shop) cancel(ctx context.Context, id uuid.UUID) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	done := false
	err := s.sender.InTx(ctx, s.db, nil, func(tx *sender.Tx) (err error) {
		if done, err = s.sender.Cancel(ctx, tx, id); err != nil || !done {
			return err
		}
		n, err := tx.Exec(ctx, s.database.Text(`DELETE FROM orders WHERE id = ?`), id.String())
		if err == nil && n != 1 {
			err = fmt.Errorf("%d orders are deleted", n)
		}
		return err
	})
	switch {
	case err != nil:
		note("%s cancel: %v", id, err)
	case done:
		note("%s %s", id, Cancelled)
	default:
		note("%s not cancelled: a verifier has claimed it", id)
	}
}

// Cancelled, after a message's ID in the diary, says that a committed transaction cancelled the
// message.
const Cancelled = "cancelled"

func (s *shop) transact(ctx context.Context, t Transaction) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit+t.Hold)
	defer cancel()
	if s.pool == nil {
		switch t.Style {
		case WithPgx:
			t.Style = WithInTx
		case WithPgxStage:
			t.Style = WithStage
		}
	}
	for _, o := range append(t.Orders, t.Undone...) {
		note("%s %s, conflict %q, hold %v, roll back %t", o.ID, t.Style, t.Conflict, t.Hold, t.RollBack)
	}
	defer func() {
		for _, o := range t.Orders {
			note("%s %s%v", o.ID, ended, err)
		}
	}()
	switch t.Style {
	case "", WithSendTx, WithStageTx:
		err = s.sendTx(ctx, t)
	case WithInTx, WithStage:
		err = s.inTx(ctx, t)
	case WithPgx, WithPgxStage:
		err = s.pgxInTx(ctx, t)
	default:
		panic("no such style: " + t.Style)
	}
	if errors.Is(err, errWanted) {
		return nil
	}
	return err
}

// Ended, after a message's ID in the diary, says that the sender's transaction ended without an
// error.
const (
	Ended = ended + "<nil>"
	ended = "the sender's transaction ended: "
)

// errWanted rolls a transaction back.
var errWanted = errors.New("rolled back, as wanted")

func (t Transaction) options() *sql.TxOptions {
	if t.Conflict == Serialization {
		return &sql.TxOptions{Isolation: sql.LevelSerializable}
	}
	return nil
}

func (s *shop) inTx(ctx context.Context, t Transaction) error {
	return s.sender.InTx(ctx, s.db, t.options(), func(tx *sender.Tx) error {
		return s.within(ctx, tx, t, func(m bridge.Message) error {
			if t.Style == WithStage {
				_, err := tx.Stage(ctx, m)
				return err
			}
			_, err := tx.Send(m)
			return err
		})
	})
}

func (s *shop) pgxInTx(ctx context.Context, t Transaction) error {
	var options pgx.TxOptions
	if t.Conflict == Serialization {
		options.IsoLevel = pgx.Serializable
	}
	return pgxsender.InTx(ctx, s.sender, s.pool, options, func(tx *pgxsender.Tx) error {
		return s.within(ctx, tx.BridgeTx(), t, func(m bridge.Message) error {
			if t.Style == WithPgxStage {
				_, err := tx.Stage(ctx, m)
				return err
			}
			_, err := tx.Send(m)
			return err
		})
	})
}

// within places the orders and sends their messages in a transaction that the caller begins and
// ends.
func (s *shop) within(ctx context.Context, tx bridge.Tx, t Transaction, send func(bridge.Message) error) error {
	if t.Hold > 0 || len(t.Undone) > 0 {
		panic("only sendTx holds a transaction open, or undoes orders: not " + t.Style)
	}
	if err := s.before(ctx, tx, t); err != nil {
		return err
	}
	for _, o := range t.Orders {
		if err := s.place(ctx, tx, o); err != nil {
			return err
		}
		if err := send(o.message()); err != nil {
			return err
		}
	}
	if err := s.after(ctx, tx, t); err != nil {
		return err
	}
	if t.RollBack {
		return errWanted
	}
	return nil
}

func (s *shop) sendTx(ctx context.Context, t Transaction) error {
	tx, err := s.db.BeginTx(ctx, t.options())
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	if err := s.before(ctx, bridge.SQL(tx), t); err != nil {
		return err
	}
	if len(t.Undone) > 0 {
		if _, err := tx.ExecContext(ctx, `SAVEPOINT before`); err != nil {
			return err
		}
		if err := s.stage(ctx, tx, t.Style, t.Undone); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT before`); err != nil {
			return err
		}
	}
	if err := s.stage(ctx, tx, t.Style, t.Orders); err != nil {
		return err
	}
	if err := s.after(ctx, bridge.SQL(tx), t); err != nil {
		return err
	}
	Rest(ctx, t.Hold)
	if t.RollBack {
		return errWanted
	}
	for _, o := range t.Orders {
		note("%s commits", o.ID)
	}
	return tx.Commit()
}

// stage places the orders and sends their messages.
func (s *shop) stage(ctx context.Context, tx *sql.Tx, style Style, orders []Order) (err error) {
	defer func() {
		for _, o := range orders {
			note("%s staged: %v", o.ID, err)
		}
	}()
	var messages []bridge.Message
	var early []*sender.Staged
	for _, o := range orders {
		if err := s.place(ctx, bridge.SQL(tx), o); err != nil {
			return err
		}
		if style != WithStageTx {
			messages = append(messages, o.message())
			continue
		}
		staged, err := s.sender.StageTx(ctx, bridge.SQL(tx), o.message())
		if err != nil {
			return err
		}
		early = append(early, staged)
	}
	for _, staged := range early {
		if err := staged.Wait(ctx); err != nil {
			return err
		}
	}
	_, err = s.sender.SendTx(ctx, bridge.SQL(tx), messages...)
	return err
}

// place inserts the business row. The judge decides only by this row which messages committed.
func (s *shop) place(ctx context.Context, tx bridge.Tx, o Order) error {
	number := 0
	if o.Key != "" {
		var err error
		if number, err = s.count(ctx, tx, o.Key); err != nil {
			return fmt.Errorf("count key: %w", err)
		}
	}
	if _, err := tx.Exec(ctx, s.database.Text(`INSERT INTO orders (id, target, name, number, not_before) VALUES (?, ?, ?, ?, ?)`),
		o.ID.String(), TargetName(o.To), o.Key, number, o.notBeforeMS()); err != nil {
		return fmt.Errorf("insert order: %w", err)
	}
	return nil
}

// notBeforeMS returns NotBefore in milliseconds since 1970, or 0 if the message is not delayed.
func (o Order) notBeforeMS() int64 {
	if o.NotBefore.IsZero() {
		return 0
	}
	return o.NotBefore.UnixMilli()
}

// count locks a key's row and returns the key's next number.
func (s *shop) count(ctx context.Context, tx bridge.Tx, key string) (number int, err error) {
	if _, err := tx.Exec(ctx, s.database.Text(`UPDATE counters SET number = number + 1 WHERE name = ?`), key); err != nil {
		return 0, err
	}
	rows, err := tx.Query(ctx, s.database.Text(`SELECT number FROM counters WHERE name = ?`), key)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	if !rows.Next() {
		return 0, errors.Join(rows.Err(), fmt.Errorf("no key %q", key))
	}
	if err := rows.Scan(&number); err != nil {
		return 0, err
	}
	return number, rows.Err()
}

// before runs a conflict's first half, and after its second half.
func (s *shop) before(ctx context.Context, tx bridge.Tx, t Transaction) error {
	var err error
	switch t.Conflict {
	case Serialization:
		// MySQL reports a deadlock in place of the row. Code that ignores the error would continue
		// without a transaction.
		var rows bridge.Rows
		if rows, err = tx.Query(ctx, `SELECT sum(amount) FROM stock`); err == nil {
			for rows.Next() {
			}
			err = rows.Err()
			rows.Close()
		}
	case Deadlock:
		err = s.take(ctx, tx, t.Items[0])
	case LockTimeout:
		_, err = tx.Exec(ctx, s.database.shortLockTimeout)
	}
	return err
}

func (s *shop) after(ctx context.Context, tx bridge.Tx, t Transaction) error {
	switch t.Conflict {
	case Serialization, LockTimeout:
		return s.take(ctx, tx, t.Items[0])
	case Deadlock:
		return s.take(ctx, tx, t.Items[1])
	}
	return nil
}

func (s *shop) take(ctx context.Context, tx bridge.Tx, item int) error {
	if _, err := tx.Exec(ctx, s.database.Text(`UPDATE stock SET amount = amount - 1 WHERE item = ?`), item); err != nil {
		return fmt.Errorf("take from stock: %w", err)
	}
	return nil
}
