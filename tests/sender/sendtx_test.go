package sender_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// Rule 11 of package bridge: whether SendTx sends or fails, the transaction stays usable, only
// the caller ends it, and SendTx adds only queries and INSERTs to it.
func TestTheTransactionStaysTheCallers(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, s *stage.Stage) {
		if _, err := s.DB.ExecContext(t.Context(), `CREATE TABLE work (id int)`); err != nil {
			t.Fatal(err)
		}
		send := func(msgs ...bridge.Message) (*watchedTx, error) {
			tx := &watchedTx{Tx: begin(t, s.DB)}
			_, err := s.Sender.SendTx(t.Context(), bridge.SQL(tx), msgs...)
			if tx.ended > 0 {
				t.Errorf("the transaction was ended by SendTx, whose error is %v", err)
			}
			for _, statement := range tx.statements {
				if verb, _, _ := strings.Cut(strings.TrimSpace(statement), " "); verb != "INSERT" && verb != "SELECT" {
					t.Errorf("a statement of ours in the caller's transaction: %s", statement)
				}
			}
			return tx, err
		}
		works := func(tx *watchedTx) {
			t.Helper()
			if _, err := tx.Tx.ExecContext(t.Context(), `INSERT INTO work VALUES (1)`); err != nil {
				t.Errorf("the transaction does not go on: %v", err)
			}
		}

		s.Queue("target", nil)
		tx, err := send(messages("target", 2)...)
		if err != nil {
			t.Fatal(err)
		}
		works(tx)
		if err := tx.Tx.Commit(); err != nil {
			t.Errorf("the caller's commit: %v", err)
		}
		if len(tx.statements) == 0 {
			t.Error("no statement was seen: nothing is shown")
		}

		if _, err := s.Channel.QueueDelete(s.Topology.Queue, false, false, false); err != nil {
			t.Fatal(err)
		}
		if tx, err = send(messages("target", 2)...); !errors.Is(err, bridge.ErrReturned) {
			t.Errorf("without a staging queue: %v", err)
		}
		works(tx)
		if err := tx.Tx.Rollback(); err != nil {
			t.Errorf("the caller's rollback: %v", err)
		}

		var done int
		if err := s.DB.QueryRowContext(t.Context(), `SELECT count(*) FROM work`).Scan(&done); err != nil || done != 1 {
			t.Errorf("%d rows of the caller's work, error %v; must be the committed row alone", done, err)
		}
	})
}

// watchedTx is a caller's transaction that notes the calls of others.
type watchedTx struct {
	*sql.Tx
	ended      int
	statements []string
}

func (tx *watchedTx) Commit() error   { tx.ended++; return tx.Tx.Commit() }
func (tx *watchedTx) Rollback() error { tx.ended++; return tx.Tx.Rollback() }

func (tx *watchedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tx.statements = append(tx.statements, query)
	return tx.Tx.ExecContext(ctx, query, args...)
}

func (tx *watchedTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	tx.statements = append(tx.statements, query)
	return tx.Tx.QueryContext(ctx, query, args...)
}

// The messages are more than fit into one group, and one is as large as a message may be.
func TestManyMessagesAreStagedInTheirOrderAndDelivered(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	s.Queue("target", nil)
	many := messages("target", 2500)
	many[1000].Publishing.Body = make([]byte, 16<<20)
	ids := s.Commit(many...)
	for i, d := range s.Staged() {
		if d.MessageId != ids[i].String() || !bytes.Equal(d.Body, many[i].Publishing.Body) {
			t.Fatalf("at %d: message %s with %d bytes", i, d.MessageId, len(d.Body))
		}
	}
	s.RollBack(messages("target", 100)...)
	settled(t, s, "target", ids...)
}

func TestHundredsOfGoroutinesShareASender(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	s.Queue("target", nil)
	s.DB.SetMaxOpenConns(20)
	var (
		running   sync.WaitGroup
		mu        sync.Mutex
		committed []uuid.UUID
	)
	rollBack := errors.New("roll back")
	for range 300 {
		running.Go(func() {
			var ids []uuid.UUID
			err := inTx(t.Context(), s.DB, func(tx *sql.Tx) (err error) {
				if ids, err = s.Sender.SendTx(t.Context(), bridge.SQL(tx), messages("target", 1+rand.IntN(3))...); err == nil && rand.IntN(3) == 0 {
					err = rollBack
				}
				return err
			})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				committed = append(committed, ids...)
			} else if !errors.Is(err, rollBack) {
				t.Error(err)
			}
		})
	}
	running.Wait()
	s.DB.SetMaxOpenConns(0) // as many as the verifier may need
	settled(t, s, "target", committed...)
}
