package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	mssql "github.com/microsoft/go-mssqldb"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/proof"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
)

// question is a question to a server. If want is empty, no code depends on the answer.
type question struct {
	text, want string
	ask        func(ctx context.Context, w *world) (string, error)
	within     time.Duration // 0: patience
}

// A question about plans reads the plans of the statements of all questions before it. The plans of the
// last question scan a table.
var questions = []question{
	{text: "Does UPDATE … SET mark = mark keep a second one waiting until the COMMIT?",
		ask: markWaits("")},
	{text: "Does it with UPDLOCK?", want: "waits",
		ask: markWaits("UPDLOCK, ")},
	{text: "Does READPAST pass an open INSERT?",
		ask: readPast("")},
	{text: "Does READPAST with UPDLOCK pass an open INSERT?",
		ask: readPast("UPDLOCK, ")},
	{text: "With which errors does a wait end at LOCK_TIMEOUT?", want: "1222",
		ask: lockTimeoutNumber},
	{text: "With which errors does a login to a missing database fail?", want: "4060, 18456",
		ask: missingDatabase},
	{text: "And to a database that is offline?",
		ask: offlineDatabase},
	{text: "With which errors do statements fail whose hints name a missing index, then a disabled one?", want: "308, 315",
		ask: missingIndex},
	{text: "Which errors has each view of sessions and locks without VIEW SERVER STATE?",
		ask: noServerState},
	{text: "Which settings has a pooled connection that comes back (LOCK_TIMEOUT, XACT_ABORT, NOCOUNT, isolation level): at once, after 1222, after 2627?", want: "-1 0 0 2, -1 0 0 2, -1 0 0 2",
		ask: resets},
	{text: "Do DoubtOverdue and ChangePending end in deadlocks?", want: "none",
		ask: deadlocks, within: 5 * time.Minute},
	{text: "Own table, a unique index on a heap: does the settle wait?", want: "still open, rolled back",
		ask: ownTables("CREATE TABLE ask_orders (id uniqueidentifier NOT NULL, n int)", "CREATE UNIQUE INDEX i ON ask_orders (id)")},
	{text: "Own table, a unique index on a clustered table: does the settle wait?", want: "still open, rolled back",
		ask: ownTables("CREATE TABLE ask_orders (n int IDENTITY PRIMARY KEY CLUSTERED, id uniqueidentifier NOT NULL, CONSTRAINT ask_once UNIQUE NONCLUSTERED (id))")},
	{text: "Own table, a unique index beside a columnstore index: does the settle wait?", want: "still open, rolled back",
		ask: ownTables("CREATE TABLE ask_orders (id uniqueidentifier NOT NULL, n int)", "CREATE UNIQUE INDEX i ON ask_orders (id)", "CREATE NONCLUSTERED COLUMNSTORE INDEX c ON ask_orders (n)")},
	{text: "Is a row visible to a version reader while its COMMIT waits for the log or for a secondary?",
		ask: func(context.Context, *world) (string, error) {
			return "", errors.New("it needs an availability group whose synchronous secondary is stopped: suspend it, INSERT and COMMIT in one session, SELECT under READ_COMMITTED_SNAPSHOT in another")
		}},
	{text: "At SNAPSHOT, the INSERT of a key that was deleted after the snapshot: success, 2627 or 3960?",
		ask: snapshotInsert},
	{text: "Does the lookup that never waits find a committed row beside one that an open transaction is inserting?", want: "the committed one",
		ask: besideOpen},
	{text: "Does a settle wait for an open transaction?", want: "still open",
		ask: settleWaits},
	{text: "Does a settle that has begun to wait wake when that transaction commits?", want: "committed",
		ask: settleWakes},
	{text: "Does the whole proof hold?", want: "yes",
		ask: prove},
	{text: "Is 0x6B00 a duplicate of 0x6B in a key of varbinary?", want: "2627",
		ask: padding},
	{text: "Are the bytes that a statement cuts out of a longer parameter stored exactly?", want: "yes",
		ask: exactly},
	{text: "Do all statements of the inbox compile with their FORCESEEK, and wait for no other's rows?", want: "yes",
		ask: inboxSeeks},
	{text: "Which SET options that a filtered index needs has a connection (ANSI_NULLS, ANSI_PADDING, ANSI_WARNINGS, ARITHABORT, CONCAT_NULL_YIELDS_NULL, QUOTED_IDENTIFIER, NUMERIC_ROUNDABORT)?", want: "1111110",
		ask: setOptions},
	{text: "Is a carried message recorded, found due beside one that is not committed, claimed once, touched and forgotten, and its stage time at first recorded_at?", want: "yes",
		ask: carried},
	{text: "Is a delayed message read, advanced and cancelled, and does a settle by INSERT tell a rollback?", want: "yes",
		ask: delayed},
	{text: "Do NOCOUNT, ROWCOUNT, TEXTSIZE and XACT_ABORT of the caller's session change a result, or does the bridge change them?", want: "no",
		ask: callersSettings},
	{text: "Do two workers that take pending messages at once get one each?", want: "first, second",
		ask: twoTakers},
	{text: "Which session holds a message up? (With the rights that this login has.)", want: "one session, with its statement",
		ask: holders},
	{text: "Does a plan of ours scan a table whose rows others lock, or sort rows that it locks?", want: "none does",
		ask: plans},
	{text: "And with a million rows?", want: "none does",
		ask: plansOfMany, within: 10 * time.Minute},
	{text: "Do the statements run that read a whole table, and is an orphan swept?", want: "yes",
		ask: whole},
}

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

func (w *world) record(ctx context.Context, tx *sql.Tx, id uuid.UUID) error {
	return w.ledger.Record(ctx, bridge.SQL(tx), driver.Plain(id))
}

// whileOpen runs fn while a transaction is open that has recorded an ID.
func (w *world) whileOpen(ctx context.Context, fn func(id uuid.UUID, commit func() error) (string, error)) (string, error) {
	tx, err := w.begin(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = tx.Rollback() }()
	id := newID()
	if err := w.ledger.Record(ctx, bridge.SQL(tx), driver.Plain(id)); err != nil {
		return "", err
	}
	return fn(id, tx.Commit)
}

func besideOpen(ctx context.Context, w *world) (string, error) {
	committed := newID()
	err := w.in(ctx, func(tx bridge.Tx) error { return w.ledger.Record(ctx, tx, driver.Plain(committed)) })
	if err != nil {
		return "", err
	}
	return w.whileOpen(ctx, func(open uuid.UUID, _ func() error) (string, error) {
		found, _, err := w.ledger.Committed(ctx, []uuid.UUID{open, committed, newID()})
		switch {
		case err != nil:
			return "", err
		case slices.Equal(found, []uuid.UUID{committed}):
			return "the committed one", nil
		default:
			return fmt.Sprintf("%d rows; the open one among them: %t", len(found), slices.Contains(found, open)), nil
		}
	})
}

func settleWaits(ctx context.Context, w *world) (string, error) {
	return w.whileOpen(ctx, func(id uuid.UUID, _ func() error) (string, error) {
		outcome, _, err := w.ledger.Settle(ctx, id, 200*time.Millisecond)
		return outcome.String(), err
	})
}

// untilItWaits is the time in which a statement is expected to begin its wait.
const untilItWaits = 500 * time.Millisecond

func settleWakes(ctx context.Context, w *world) (string, error) {
	return w.whileOpen(ctx, func(id uuid.UUID, commit func() error) (string, error) {
		var outcome driver.Outcome
		settled := make(chan error, 1)
		go func() {
			var err error
			outcome, _, err = w.ledger.Settle(ctx, id, patience/2)
			settled <- err
		}()
		time.Sleep(untilItWaits)
		err := errors.Join(commit(), <-settled)
		return outcome.String(), err
	})
}

const lockedRead = "SELECT count(*) FROM bridge_ledger WITH (READCOMMITTEDLOCK, ROWLOCK) WHERE id = CAST(@p1 AS uniqueidentifier)"

func lockTimeoutNumber(ctx context.Context, w *world) (string, error) {
	return w.whileOpen(ctx, func(id uuid.UUID, _ func() error) (string, error) {
		tx, err := w.begin(ctx)
		if err != nil {
			return "", err
		}
		defer func() { _ = tx.Rollback() }()
		var n int
		err = tx.QueryRowContext(ctx, lockedRead, stored(id)).Scan(&n)
		return number(err), nil
	})
}

// stored returns id in SQL Server's byte order.
func stored(id uuid.UUID) []byte {
	value, _ := mssql.UniqueIdentifier(id).Value()
	return value.([]byte)
}

// missingIndex reads a table by hints that no plan can follow.
func missingIndex(ctx context.Context, w *world) (answer string, err error) {
	defer func() {
		_, failed := w.db.ExecContext(context.WithoutCancel(ctx), "DROP TABLE ask_indexed")
		err = errors.Join(err, failed)
	}()
	for _, statement := range []string{"CREATE TABLE ask_indexed (n int NOT NULL)", "CREATE INDEX ask_i ON ask_indexed (n)", "ALTER INDEX ask_i ON ask_indexed DISABLE"} {
		if _, err := w.db.ExecContext(ctx, statement); err != nil {
			return "", err
		}
	}
	var numbers []string
	for _, index := range []string{"nowhere", "ask_i"} {
		var n int
		err := w.db.QueryRowContext(ctx, "SELECT count(*) FROM ask_indexed WITH (INDEX ("+index+"))").Scan(&n)
		numbers = append(numbers, number(err))
	}
	return strings.Join(numbers, ", "), nil
}

func prove(ctx context.Context, w *world) (string, error) {
	if _, err := proof.Prove(ctx, w.ledger); err != nil {
		return err.Error(), nil
	}
	return "yes", nil
}

func padding(ctx context.Context, w *world) (string, error) {
	const insert = "INSERT INTO bridge_inbox (consumer, [key]) SELECT @p1, k.k FROM (VALUES (1, @p3)) AS k (n, k) WHERE k.n <= @p2"
	if _, err := w.db.ExecContext(ctx, insert, []byte("padding"), 1, []byte("k")); err != nil {
		return "", err
	}
	_, err := w.db.ExecContext(ctx, insert, []byte("padding"), 1, []byte("k\x00"))
	if err == nil {
		return "no error", nil
	}
	return number(err), nil
}

func exactly(ctx context.Context, w *world) (string, error) {
	want := driver.Pending{Key: strings.Repeat("k", 255), State: driver.Ready, Run: "r", Error: "😀 ", Message: []byte("\x00m\x00")}
	var got *driver.Pending
	err := w.in(ctx,
		func(tx bridge.Tx) error {
			_, err := w.inbox.AddPending(ctx, tx, "exactly", want, time.Hour)
			return err
		},
		func(tx bridge.Tx) (err error) {
			_, got, err = w.inbox.LookUp(ctx, tx, "exactly", want.Key)
			return err
		},
	)
	if err != nil {
		return err.Error(), nil
	}
	if got == nil {
		return "no row", nil
	}
	want.Since, want.Stored = got.Since, true
	if !reflect.DeepEqual(*got, want) {
		return fmt.Sprintf("%+v", *got), nil
	}
	return "yes", nil
}

// inboxSeeks runs each statement of the inbox while another transaction has rows open.
func inboxSeeks(ctx context.Context, w *world) (string, error) {
	open, err := w.begin(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = open.Rollback() }()
	pending := func(key string) driver.Pending {
		return driver.Pending{Key: key, State: driver.Started, Run: "r", Message: []byte("m")}
	}
	add := func(tx bridge.Tx, consumer, key string) error {
		_, claim := w.inbox.Claim(ctx, tx, consumer, []string{key})
		_, add := w.inbox.AddPending(ctx, tx, consumer, pending(key), time.Hour)
		_, lock := w.inbox.LockMark(ctx, tx, consumer, key)
		_, keep := w.inbox.Keep(ctx, tx, consumer, key, 1, []byte("m"))
		return errors.Join(claim, add, lock, keep)
	}
	if err := add(bridge.SQL(open), "theirs", "open"); err != nil {
		return "", err
	}
	const c, k = "ours", "key"
	err = w.in(ctx,
		func(tx bridge.Tx) error { return add(tx, c, k) },
		func(tx bridge.Tx) error { _, _, err := w.inbox.LookUp(ctx, tx, c, k); return err },
		func(tx bridge.Tx) error { _, err := w.inbox.ChangePending(ctx, tx, c, "r", pending(k), 0); return err },
		func(tx bridge.Tx) error { _, err := w.inbox.AttachMessage(ctx, tx, c, k, "r", []byte("m")); return err },
		func(tx bridge.Tx) error { _, err := w.inbox.DoubtOverdue(ctx, tx, c); return err },
		func(tx bridge.Tx) error { _, err := w.inbox.TakePending(ctx, tx, c, driver.Doubtful); return err },
		func(tx bridge.Tx) error { _, err := w.inbox.ListPending(ctx, tx, c, driver.Ready, "", 9); return err },
		func(tx bridge.Tx) error { _, err := w.inbox.CountPending(ctx, tx, c); return err },
		func(tx bridge.Tx) error {
			_, add := w.inbox.AddPending(ctx, tx, c, driver.Pending{Key: "bare", State: driver.Started, Run: "r"}, time.Hour)
			_, release := w.inbox.ReleasePending(ctx, tx, c, "bare", "r")
			return errors.Join(add, release)
		},
		func(tx bridge.Tx) error { _, err := w.inbox.RemovePending(ctx, tx, c, k, "r"); return err },
		func(tx bridge.Tx) error { _, err := w.inbox.Claimed(ctx, tx, c, "", 9); return err },
		func(tx bridge.Tx) error {
			_, err := w.inbox.Forget(ctx, tx, c, []string{"none"}, time.Hour)
			return err
		},
		func(tx bridge.Tx) error { _, err := w.inbox.LockMark(ctx, tx, c, k); return err },
		func(tx bridge.Tx) error { return w.inbox.SetMark(ctx, tx, c, k, "1") },
		func(tx bridge.Tx) error { _, err := w.inbox.CountKept(ctx, tx, c, k); return err },
		func(tx bridge.Tx) error { _, _, err := w.inbox.FirstKept(ctx, tx, c, k); return err },
		func(tx bridge.Tx) error { _, err := w.inbox.KeptEntities(ctx, tx, c, 9); return err },
		func(tx bridge.Tx) error { return w.inbox.Unkeep(ctx, tx, c, k, 1) },
	)
	if err != nil {
		return err.Error(), nil
	}
	return "yes", nil
}

func setOptions(ctx context.Context, w *world) (options string, err error) {
	err = w.db.QueryRowContext(ctx, `SELECT CONCAT(SESSIONPROPERTY('ANSI_NULLS'), SESSIONPROPERTY('ANSI_PADDING'), SESSIONPROPERTY('ANSI_WARNINGS'),
		SESSIONPROPERTY('ARITHABORT'), SESSIONPROPERTY('CONCAT_NULL_YIELDS_NULL'), SESSIONPROPERTY('QUOTED_IDENTIFIER'), SESSIONPROPERTY('NUMERIC_ROUNDABORT'))`).Scan(&options)
	return options, err
}

// carried runs each statement for carried messages while another transaction has an open one.
func carried(ctx context.Context, w *world) (string, error) {
	var entries []driver.Entry
	var ids []uuid.UUID
	for i := range 20 {
		ids = append(ids, newID())
		entries = append(entries, driver.Entry{ID: ids[i], Message: bytes.Repeat([]byte{0, byte(i)}, 1+i*100), Unpublished: true})
	}
	record := func(entries ...driver.Entry) func(tx bridge.Tx) error {
		return func(tx bridge.Tx) error { return w.ledger.Record(ctx, tx, entries) }
	}
	if err := w.in(ctx, record(entries...)); err != nil {
		return "", err
	}
	tx, err := w.begin(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = tx.Rollback() }()
	err = record(driver.Entry{ID: newID(), Message: []byte("open"), Unpublished: true})(bridge.SQL(tx))
	if err != nil {
		return "", err
	}
	due, _, err := w.ledger.Due(ctx, driver.DueRow{}, 100)
	if err != nil {
		return "", err
	}
	claimed, err := w.ledger.Claim(ctx, due)
	if err != nil {
		return "", err
	}
	again, err := w.ledger.Claim(ctx, due)
	if err != nil {
		return "", err
	}
	if len(due) != len(ids) || len(claimed) != len(ids) || len(again) > 0 {
		return fmt.Sprintf("%d are due, %d claimed, then %d", len(due), len(claimed), len(again)), nil
	}
	for _, row := range due {
		if !row.Unpublished() || !row.StageAt.Equal(row.RecordedAt) {
			return fmt.Sprintf("recorded at %v, due at %v", row.RecordedAt, row.StageAt), nil
		}
	}
	for _, c := range claimed {
		if i := slices.Index(ids, c.ID); i < 0 || !bytes.Equal(c.Message, entries[i].Message) {
			return "another message", nil
		}
	}
	if err := w.ledger.Touch(ctx, ids); err != nil {
		return "", err
	}
	left, err := w.ledger.Forget(ctx, ids)
	if err != nil || len(left) > 0 {
		return fmt.Sprint("rows are left: ", left), err
	}
	return "yes", nil
}

// callersSettings runs statements of several rows, statements that count and statements that return
// a message, in a session with unusual settings.
func callersSettings(ctx context.Context, w *world) (string, error) {
	const consumer = "settings"
	keys, ids, message := []string{"a", "b", "c"}, []uuid.UUID{newID(), newID(), newID()}, []byte("message")
	tx, err := w.begin(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, "SET NOCOUNT ON; SET XACT_ABORT ON; SET ROWCOUNT 1; SET TEXTSIZE 2"); err != nil {
		return "", err
	}
	of := bridge.SQL(tx)
	record := w.ledger.Record(ctx, of, driver.Plain(ids...))
	fresh, claim := w.inbox.Claim(ctx, of, consumer, keys)
	again, refused := w.inbox.Claim(ctx, of, consumer, keys)
	added, add := w.inbox.AddPending(ctx, of, consumer, driver.Pending{Key: "a", State: driver.Ready, Run: "r", Message: message}, 0)
	_, pending, look := w.inbox.LookUp(ctx, of, consumer, "a")
	removed, remove := w.inbox.RemovePending(ctx, of, consumer, "a", "r")
	if err := errors.Join(record, claim, refused, add, look, remove); err != nil {
		return err.Error(), nil
	}
	if len(fresh) != len(keys) || len(again) > 0 || !added || pending == nil || !bytes.Equal(pending.Message, message) || !removed {
		return fmt.Sprintf("%d are fresh, then %d; added: %t, found: %+v, removed: %t", len(fresh), len(again), added, pending, removed), nil
	}
	var settings string
	if err := tx.QueryRowContext(ctx, "SELECT CONCAT(@@TEXTSIZE, ' ', @@OPTIONS & 16896)").Scan(&settings); err != nil {
		return "", err
	}
	if settings != "2 16896" {
		return "they are now " + settings, nil
	}
	if err := tx.Commit(); err != nil {
		return "", err
	}
	found, _, err := w.ledger.Committed(ctx, ids)
	if err != nil || len(found) != len(ids) {
		return fmt.Sprintf("%d of %d IDs are recorded", len(found), len(ids)), err
	}
	return "no", nil
}

// delayed runs the statements on single rows that other questions leave out.
func delayed(ctx context.Context, w *world) (string, error) {
	inspector := sqlserver.Inspect(w.ledger)
	later := func() driver.Entry {
		return driver.Entry{ID: newID(), Message: []byte("m"), Unpublished: true, NotBefore: time.Now().Add(time.Hour).Truncate(time.Millisecond)}
	}
	now, first, second := newID(), later(), later()
	err := w.in(ctx,
		func(tx bridge.Tx) error { return w.ledger.Record(ctx, tx, driver.Plain(now)) },
		func(tx bridge.Tx) error { return w.ledger.Record(ctx, tx, []driver.Entry{first, second}) })
	if err != nil {
		return err.Error(), nil
	}
	row, read := inspector.CarriedRow(ctx, first.ID)
	recent, _, look := w.ledger.Recent(ctx, []uuid.UUID{now, first.ID}, time.Minute)
	advanced, advance := inspector.Advance(ctx, first.ID)
	cancelled := false
	cancel := w.in(ctx, func(tx bridge.Tx) (err error) {
		cancelled, err = w.ledger.Cancel(ctx, tx, second.ID)
		return err
	})
	left, forget := w.ledger.Forget(ctx, []uuid.UUID{now, first.ID, second.ID}) // the last one is gone
	_, swept := w.ledger.SweptBefore(ctx)
	other, open := sqlserver.Open(ctx, w.db)
	err = errors.Join(read, look, advance, cancel, forget, swept, open)
	var outcome driver.Outcome
	if err == nil {
		other.FallBack(errors.New("asked by a question"))
		outcome, _, err = other.Settle(ctx, newID(), time.Second)
	}
	if err != nil {
		return err.Error(), nil
	}
	if row == nil || !slices.Equal(recent, []uuid.UUID{now}) || !advanced || !cancelled || len(left) > 0 || outcome != driver.RolledBack {
		return fmt.Sprintf("the row is read: %t, %d are recent, advanced: %t, cancelled: %t, %d are left, %s", row != nil, len(recent), advanced, cancelled, len(left), outcome), nil
	}
	return "yes", nil
}

// whole runs the statements that no key bounds.
func whole(ctx context.Context, w *world) (string, error) {
	inspector := sqlserver.Inspect(w.ledger)
	orphan := newID()
	if err := w.in(ctx, func(tx bridge.Tx) error { return w.ledger.Record(ctx, tx, driver.Plain(orphan)) }); err != nil {
		return err.Error(), nil
	}
	_, older := w.db.ExecContext(ctx, "UPDATE bridge_ledger SET recorded_at = DATEADD(hour, -2, recorded_at) WHERE id = '"+orphan.String()+"'")
	swept, sweep := w.ledger.Sweep(ctx, time.Hour, 10)
	_, count := inspector.CountCarried(ctx, 10)
	_, list := inspector.CarriedRows(ctx, 10)
	_, countDelayed := inspector.CountDelayed(ctx, 10)
	_, listDelayed := inspector.DelayedRows(ctx, 10)
	_, inbox := sqlserver.DiagnoseInbox(ctx, w.db)
	_, diagnosis := inspector.Diagnose(ctx)
	_, transactions := inspector.OpenTransactions(ctx, 0, 10)
	if err := errors.Join(older, sweep, count, list, countDelayed, listDelayed, inbox, diagnosis, transactions); err != nil {
		return err.Error(), nil
	}
	if len(swept) != 1 || swept[0].ID != orphan {
		return fmt.Sprintf("%d are swept", len(swept)), nil
	}
	return "yes", nil
}

func twoTakers(ctx context.Context, w *world) (string, error) { return twoTakersOf("takers")(ctx, w) }

func twoTakersOf(consumer string) func(ctx context.Context, w *world) (string, error) {
	return func(ctx context.Context, w *world) (string, error) {
		var steps []func(tx bridge.Tx) error
		for i, key := range []string{"first", "second", "third"} {
			steps = append(steps, func(tx bridge.Tx) error {
				_, err := w.inbox.AddPending(ctx, tx, consumer, driver.Pending{Key: key, State: driver.Ready, Run: "r", Message: []byte("m")},
					time.Duration(i-10)*time.Minute)
				return err
			})
		}
		if err := w.in(ctx, steps...); err != nil {
			return "", err
		}
		var got []string
		for range 2 {
			tx, err := w.begin(ctx)
			if err != nil {
				return "", err
			}
			defer func() { _ = tx.Rollback() }()
			p, err := w.inbox.TakePending(ctx, bridge.SQL(tx), consumer, driver.Ready)
			switch {
			case err != nil:
				got = append(got, err.Error())
			case p == nil:
				got = append(got, "nothing")
			default:
				got = append(got, p.Key)
			}
		}
		return strings.Join(got, ", "), nil
	}
}

func holders(ctx context.Context, w *world) (string, error) {
	return w.whileOpen(ctx, func(id uuid.UUID, _ func() error) (string, error) {
		found, err := sqlserver.Inspect(w.ledger).Holders(ctx, id)
		if err != nil {
			return "", err
		}
		if len(found) == 1 && strings.Contains(found[0].Statement, "INSERT INTO bridge_ledger") {
			return "one session, with its statement", nil
		}
		return fmt.Sprintf("%+v", found), nil
	})
}
