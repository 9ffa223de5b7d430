package sender_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/pgxbridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/sender/pgxsender"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// newPool opens a pool of pgx, which is closed after everything that the test opens on it later.
func newPool(t *testing.T, url string, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range configure {
		c(config)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// newPgxLedger opens the ledger on a pool.
func newPgxLedger(t *testing.T, pool *pgxpool.Pool) *postgres.Ledger {
	t.Helper()
	ledger, err := pgxbridge.Open(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ledger.DB().Close() })
	return ledger
}

// pgxShop returns a shop whose sender works natively on a pool of pgx.
func pgxShop(t *testing.T) (*stage.Stage, *pgxpool.Pool) {
	t.Helper()
	s := stage.New(t, stage.Postgres)
	shop(t, s)
	pool := newPool(t, s.DatabaseURL)
	s.Sender = newSender(t, newPgxLedger(t, pool), s.Broker, stage.Patience)
	return s, pool
}

func inPgx(t *testing.T, s *stage.Stage, pool *pgxpool.Pool, fn func(tx *pgxsender.Tx) error) error {
	return pgxsender.InTx(t.Context(), s.Sender, pool, pgx.TxOptions{}, fn)
}

// pgxBegin begins a transaction that is rolled back at the end of the test at the latest.
func pgxBegin(t *testing.T, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func pgxCommit(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatalf("commit: %v", err)
	}
}

func TestTheCommitOfPgxDecides(t *testing.T) {
	t.Parallel()
	s, pool := pgxShop(t)
	send := func(tx pgx.Tx, n int) []uuid.UUID {
		t.Helper()
		ids, err := s.Sender.SendTx(t.Context(), pgxbridge.Tx(tx), messages("target", n)...)
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	outer := pgxBegin(t, pool)
	savepoint, err := outer.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send(savepoint, 2)
	// No call waits for these early staged messages.
	if _, err := s.Sender.StageTx(t.Context(), pgxbridge.Tx(savepoint), messages("target", 2)...); err != nil {
		t.Fatal(err)
	}
	if err := savepoint.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	ids := send(outer, 1)
	pgxCommit(t, outer)

	before := s.Depth("staging")
	for name, ended := range map[string]pgx.Tx{"committed": outer, "a savepoint": savepoint} {
		if _, err := s.Sender.SendTx(t.Context(), pgxbridge.Tx(ended), messages("target", 1)...); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("a transaction that has ended, %s: %v", name, err)
		}
	}
	if n := s.Depth("staging"); n != before {
		t.Error("a transaction that has ended has sent something")
	}
	settled(t, s, "target", ids...)
}

func TestInTxOfPgxHasTheStatementsOfPgx(t *testing.T) {
	t.Parallel()
	s, pool := pgxShop(t)
	ctx := t.Context()
	err := inPgx(t, s, pool, func(tx *pgxsender.Tx) error {
		tag, err := tx.Exec(ctx, insertOrder, 1)
		if err != nil || tag.RowsAffected() != 1 {
			t.Errorf("Exec: %v, %v", tag, err)
		}
		batch := new(pgx.Batch)
		batch.Queue(insertOrder, 2)
		batch.Queue(insertOrder, 3)
		if err := tx.SendBatch(ctx, batch); err != nil {
			return err
		}
		if n, err := tx.CopyFrom(ctx, pgx.Identifier{"orders"}, []string{"id"}, pgx.CopyFromRows([][]any{{4}, {5}})); n != 2 || err != nil {
			t.Errorf("CopyFrom: %d, %v", n, err)
		}
		if changed, err := tx.BridgeTx().Exec(ctx, insertOrder, 6); changed != 1 || err != nil {
			t.Errorf("BridgeTx().Exec: %d, %v", changed, err)
		}
		var n int
		if err := tx.QueryRow(ctx, "SELECT count(*) FROM orders").Scan(&n); err != nil || n != 6 {
			t.Errorf("QueryRow: %d, %v", n, err)
		}
		rows, err := tx.Query(ctx, "SELECT id FROM orders ORDER BY id")
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[int])
		if !slices.Equal(found, []int{1, 2, 3, 4, 5, 6}) {
			t.Errorf("Query: %v", found)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := orders(t, s); n != 6 {
		t.Errorf("%d orders", n)
	}
}

// Such a transaction can no longer commit, and InTx must not return nil.
func TestInTxOfPgxRollsBackWhenAStatementHasFailed(t *testing.T) {
	t.Parallel()
	s, pool := pgxShop(t)
	ctx := t.Context()
	for name, statement := range map[string]string{
		"fails":                     "SELECT 1/$1::int",
		"the server cannot read it": "SELEKT $1",
	} {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, the first %t", name, first), func(t *testing.T) {
				err := inPgx(t, s, pool, func(tx *pgxsender.Tx) error {
					if !first {
						_, err := tx.Stage(ctx, messages("target", 2)...)
						_, insertError := tx.Exec(ctx, insertOrder, 1)
						if err := errors.Join(err, insertError); err != nil {
							return err
						}
					}
					var answer *pgconn.PgError
					if _, err := tx.Exec(ctx, statement, 0); !errors.As(err, &answer) {
						t.Errorf("Exec: %v", err)
					}
					return nil
				})
				if err == nil || errors.Is(err, sender.ErrCommitUnknown) {
					t.Errorf("error %v", err)
				}
			})
		}
	}
	if orders(t, s) != 0 || s.Rows() != 0 {
		t.Errorf("%d orders and %d rows in the ledger", orders(t, s), s.Rows())
	}
}

// trips counts a client's round trips to a server.
type trips struct{ n atomic.Int64 }

func (t *trips) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	return &tripConn{Conn: conn, trips: t}, err
}

type tripConn struct {
	net.Conn
	trips *trips
	asked atomic.Bool
}

func (c *tripConn) Write(b []byte) (int, error) {
	if !c.asked.Swap(true) {
		c.trips.n.Add(1)
	}
	return c.Conn.Write(b)
}

func (c *tripConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.asked.Store(false)
	}
	return n, err
}

func TestATransactionOfPgxNeedsFewRoundTrips(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	shop(t, s)
	ctx := t.Context()
	var counted trips
	pool := newPool(t, s.DatabaseURL, func(c *pgxpool.Config) {
		c.MaxConns = 1 // it has the statements prepared
		c.ConnConfig.DialFunc = counted.dial
		c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	})
	s.Sender = newSender(t, newPgxLedger(t, pool), s.Broker, stage.Patience)
	const statement = "INSERT INTO orders VALUES ($1) ON CONFLICT DO NOTHING"
	batch := func() *pgx.Batch {
		b := new(pgx.Batch)
		b.Queue(statement, 1)
		b.Queue(statement, 2)
		return b
	}
	byHand := func(send func(tx pgx.Tx) error) func() error {
		return func() error { return pgx.BeginFunc(ctx, pool, send) }
	}
	inTx := func(fn func(tx *pgxsender.Tx) error) func() error {
		return func() error { return inPgx(t, s, pool, fn) }
	}
	for name, test := range map[string]struct {
		want int64
		do   func() error
	}{
		"InTx with nothing":                {0, inTx(func(*pgxsender.Tx) error { return nil })},
		"InTx with a message":              {2, inTx(func(tx *pgxsender.Tx) error { _, err := tx.Send(messages("target", 1)...); return err })},
		"InTx with a message staged early": {2, inTx(func(tx *pgxsender.Tx) error { _, err := tx.Stage(ctx, messages("target", 1)...); return err })},
		"InTx with Exec and a message": {3, inTx(func(tx *pgxsender.Tx) error {
			_, err := tx.Exec(ctx, statement, 1)
			_, sendError := tx.Send(messages("target", 1)...)
			return errors.Join(err, sendError)
		})},
		"InTx with SendBatch and a message": {3, inTx(func(tx *pgxsender.Tx) error {
			_, err := tx.Send(messages("target", 1)...)
			return errors.Join(err, tx.SendBatch(ctx, batch()))
		})},
		"InTx with QueryRow": {3, inTx(func(tx *pgxsender.Tx) error {
			var n int
			return tx.QueryRow(ctx, "SELECT count(*) FROM orders").Scan(&n)
		})},
		"SendTx after Exec": {4, byHand(func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, statement, 1); err != nil {
				return err
			}
			_, err := s.Sender.SendTx(ctx, pgxbridge.Tx(tx), messages("target", 1)...)
			return err
		})},
		"SendBatch": {3, byHand(func(tx pgx.Tx) error {
			_, err := pgxsender.SendBatch(ctx, s.Sender, tx, batch(), messages("target", 1)...)
			return err
		})},
	} {
		t.Run(name, func(t *testing.T) {
			if err := test.do(); err != nil { // prepares the statements
				t.Fatal(err)
			}
			before := counted.n.Load()
			if err := test.do(); err != nil {
				t.Fatal(err)
			}
			if n := counted.n.Load() - before; n != test.want {
				t.Errorf("%d round trips, must be %d", n, test.want)
			}
		})
	}
}

func TestABatchTakesTheRecordAlong(t *testing.T) {
	t.Parallel()
	s, pool := pgxShop(t)
	ctx := t.Context()
	wrong := errors.New("out of stock")
	invalid := stage.To("", "no target")
	nothing := func(pgconn.CommandTag) error { return nil }

	t.Run("and its callbacks run before anything is published", func(t *testing.T) {
		tx := pgxBegin(t, pool)
		batch := new(pgx.Batch)
		var called int
		look := func(pgconn.CommandTag) error {
			called++
			if n := s.Depth("staging"); n != 0 {
				t.Errorf("%d messages are staged while a callback runs", n)
			}
			return nil
		}
		batch.Queue(insertOrder, 1).Exec(look)
		batch.Queue("UPDATE orders SET id = $1", 2).Exec(look)
		ids, err := pgxsender.SendBatch(ctx, s.Sender, tx, batch, messages("target", 2)...)
		if err != nil {
			t.Fatal(err)
		}
		if called != 2 || len(ids) != 2 || len(s.Staged()) != 2 {
			t.Errorf("%d of 2 callbacks were called, IDs %v, %d messages are staged", called, ids, len(s.Staged()))
		}
		pgxCommit(t, tx)
		if n := orders(t, s); n != 1 {
			t.Errorf("%d orders", n)
		}
		settled(t, s, "target", ids...)
	})
	for name, test := range map[string]struct {
		second   string
		callback func(pgconn.CommandTag) error
		message  bridge.Message
		want     error // nil: an error of the server
		unsent   bool
	}{
		"a failing statement":                       {second: "SELECT 1/(1-$1::int)", callback: nothing, message: stage.To("target", "")},
		"a statement that the server does not know": {second: "SELEKT $1", callback: nothing, message: stage.To("target", ""), unsent: true},
		"a failing callback":                        {second: "SELECT $1::int", callback: func(pgconn.CommandTag) error { return wrong }, message: stage.To("target", ""), want: wrong},
		"a message that is invalid":                 {second: "SELECT $1::int", callback: nothing, message: invalid, want: bridge.ErrInvalidMessage, unsent: true},
	} {
		t.Run("and publishes nothing after "+name, func(t *testing.T) {
			tx := pgxBegin(t, pool)
			batch := new(pgx.Batch)
			sent := false
			batch.Queue(insertOrder, 7).Exec(func(pgconn.CommandTag) error { sent = true; return nil })
			batch.Queue(test.second, 1).Exec(test.callback)
			ids, err := pgxsender.SendBatch(ctx, s.Sender, tx, batch, test.message)
			var answer *pgconn.PgError
			if err == nil || len(ids) != 0 || test.want != nil && !errors.Is(err, test.want) || test.want == nil && !errors.As(err, &answer) {
				t.Errorf("IDs %v, error %v", ids, err)
			}
			if sent == test.unsent {
				t.Errorf("the batch was sent: %t", sent)
			}
			if n := len(s.Staged()); n != 0 {
				t.Errorf("%d messages are staged", n)
			}
		})
	}
	t.Run("and is sent without messages", func(t *testing.T) {
		tx := pgxBegin(t, pool)
		batch := new(pgx.Batch)
		batch.Queue(insertOrder, 3)
		if ids, err := pgxsender.SendBatch(ctx, s.Sender, tx, batch); err != nil || len(ids) != 0 {
			t.Errorf("IDs %v, error %v", ids, err)
		}
		pgxCommit(t, tx)
		if n := orders(t, s); n != 2 {
			t.Errorf("%d orders", n)
		}
	})
	t.Run("and may insert the row of an own table", func(t *testing.T) {
		if _, err := pool.Exec(ctx, "CREATE TABLE parcels (id uuid PRIMARY KEY)"); err != nil {
			t.Fatal(err)
		}
		ledger, err := postgres.OpenOwnTable(ctx, s.DB, bridge.OwnTable{Table: "parcels", Column: "id"})
		if err != nil {
			t.Fatal(err)
		}
		tx := pgxBegin(t, pool)
		message := stage.To("target", "six figs")
		message.ID = uuid.New()
		batch := new(pgx.Batch)
		batch.Queue("INSERT INTO parcels VALUES ($1)", message.ID)
		if _, err := pgxsender.SendBatch(ctx, newSender(t, ledger, s.Broker, stage.Patience), tx, batch, message); err != nil {
			t.Error(err)
		}
	})
}
