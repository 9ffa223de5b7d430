package main

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	mssql "github.com/microsoft/go-mssqldb"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect/sqlserverinspect"
)

// A question has an answer, or cannot be asked.
type question struct {
	text, want string
	ask        func(ctx context.Context, w *world) (string, error)
}

// The last question is about the plans of all that the others have run.
var questions = []question{
	{"Does the lookup that never waits find a committed row beside one that an open transaction is inserting (READPAST, also under optimized locking)?",
		"the committed one", besideOpen},
	{"Does a settle wait for an open transaction, whatever READ_COMMITTED_SNAPSHOT says?",
		"still open", settleWaits},
	{"Does a settle that has begun to wait wake when that transaction commits?",
		"committed", settleWakes},
	{"With which error does a wait end at LOCK_TIMEOUT?",
		"1222", lockTimeoutNumber},
	{"Does the whole proof hold?",
		"yes", proof},
	{"After it has waited for a row by READCOMMITTEDLOCK, does a statement under READ_COMMITTED_SNAPSHOT read another table as of its own start (1 0), or as it is (1 1, without READ_COMMITTED_SNAPSHOT)?",
		"1 0", afterAWait},
	{"Is 0x6B00 a duplicate of 0x6B in a key of varbinary?",
		"error 2627", padding},
	{"Is stored what was cut out of a longer parameter, without a byte more or less?",
		"yes", exactly},
	{"Do all statements of the inbox compile with their FORCESEEK, and wait for nobody else's rows?",
		"yes", inboxSeeks},
	{"Do two who take pending messages at once get one each?",
		"first, second", twoTakers},
	{"Who holds a message up? (With the rights that this login has.)",
		"one session, with its statement", holders},
	{"Does a plan of ours scan a table whose rows others lock, or sort what it locks?",
		"none does", plans},
}

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

// whileOpen runs fn while a transaction is open that has recorded an ID.
func (w *world) whileOpen(ctx context.Context, fn func(id uuid.UUID, commit func() error) (string, error)) (string, error) {
	tx, err := w.begin(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = tx.Rollback() }()
	id := newID()
	if err := w.ledger.Record(ctx, bridge.SQL(tx), []uuid.UUID{id}); err != nil {
		return "", err
	}
	return fn(id, tx.Commit)
}

func besideOpen(ctx context.Context, w *world) (string, error) {
	committed := newID()
	err := w.in(ctx, func(tx bridge.Tx) error { return w.ledger.Record(ctx, tx, []uuid.UUID{committed}) })
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

// untilItWaits is how long a statement is given to come to its wait.
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

// stored is id in the order in which SQL Server keeps it.
func stored(id uuid.UUID) []byte {
	value, _ := mssql.UniqueIdentifier(id).Value()
	return value.([]byte)
}

// number is that of the server's error, or the error.
func number(err error) string {
	if e := new(mssql.Error); errors.As(err, e) {
		return fmt.Sprint(e.Number)
	}
	return fmt.Sprint(err)
}

func proof(ctx context.Context, w *world) (string, error) {
	if _, err := driver.Prove(ctx, w.ledger); err != nil {
		return err.Error(), nil
	}
	return "yes", nil
}

// afterAWait reads one table by locks, and another as the database has it.
func afterAWait(ctx context.Context, w *world) (string, error) {
	tx, err := w.begin(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = tx.Rollback() }()
	id := newID()
	err = w.ledger.Record(ctx, bridge.SQL(tx), []uuid.UUID{id})
	if err == nil {
		err = w.ledger.Park(ctx, bridge.SQL(tx), []driver.Parked{{ID: id, Message: []byte("m")}})
	}
	if err != nil {
		return "", err
	}
	var ledger, parked int
	read := make(chan error, 1)
	go func() {
		read <- w.db.QueryRowContext(ctx, `SELECT l.n, p.n
FROM (SELECT count(*) AS n FROM bridge_ledger WITH (READCOMMITTEDLOCK, ROWLOCK, FORCESEEK) WHERE id = CAST(@p1 AS uniqueidentifier)) l
LEFT OUTER LOOP JOIN (SELECT count(*) AS n FROM bridge_parked WHERE id = CAST(@p1 AS uniqueidentifier)) p ON 1 = 1`, stored(id)).Scan(&ledger, &parked)
	}()
	time.Sleep(untilItWaits)
	err = errors.Join(tx.Commit(), <-read)
	return fmt.Sprint(ledger, " ", parked), err
}

func padding(ctx context.Context, w *world) (string, error) {
	const insert = "INSERT INTO bridge_inbox (consumer, [key]) VALUES (@p1, @p2)"
	if _, err := w.db.ExecContext(ctx, insert, []byte("padding"), []byte("k")); err != nil {
		return "", err
	}
	_, err := w.db.ExecContext(ctx, insert, []byte("padding"), []byte("k\x00"))
	if err == nil {
		return "no error", nil
	}
	return "error " + number(err), nil
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
		_, claim := w.inbox.Claim(ctx, tx, consumer, key)
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
		func(tx bridge.Tx) error { _, err := w.inbox.RemoveBarePending(ctx, tx, c, k, "r"); return err },
		func(tx bridge.Tx) error { _, err := w.inbox.RemovePending(ctx, tx, c, k, "r"); return err },
		func(tx bridge.Tx) error { _, err := w.inbox.Claimed(ctx, tx, c, "", 9); return err },
		func(tx bridge.Tx) error {
			_, err := w.inbox.Forget(ctx, tx, c, []string{"none"}, time.Hour)
			return err
		},
		func(tx bridge.Tx) error { return w.inbox.Unclaim(ctx, tx, c, k) },
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

func twoTakers(ctx context.Context, w *world) (string, error) {
	const consumer = "takers"
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

func holders(ctx context.Context, w *world) (string, error) {
	return w.whileOpen(ctx, func(id uuid.UUID, _ func() error) (string, error) {
		found, err := sqlserverinspect.New(w.ledger).Holders(ctx, id)
		if err != nil {
			return "", err
		}
		if len(found) == 1 && strings.Contains(found[0].Statement, "INSERT INTO bridge_ledger") {
			return "one session, with its statement", nil
		}
		return fmt.Sprintf("%+v", found), nil
	})
}

// scanned may be read whole: they have one row, or a row for each version.
var scanned = []string{"bridge_identity", "bridge_watermark", "bridge_ledger_version", "bridge_inbox_version"}

// plans looks through the plans that the server has kept. Orphans, which scans the ledger
// for the doctor, has not been run yet.
func plans(ctx context.Context, w *world) (string, error) {
	rows, err := w.db.QueryContext(ctx, `SELECT t.text, p.query_plan FROM sys.dm_exec_query_stats s
CROSS APPLY sys.dm_exec_sql_text(s.sql_handle) t CROSS APPLY sys.dm_exec_query_plan(s.plan_handle) p
WHERE t.text LIKE '%bridge[_]%' AND t.text NOT LIKE '%dm[_]exec%' AND p.query_plan IS NOT NULL`)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	var bad []string
	seen := 0
	for rows.Next() {
		var text, plan string
		if err := rows.Scan(&text, &plan); err != nil {
			return "", err
		}
		seen++
		found, err := operators(plan)
		if err != nil {
			return "", err
		}
		for _, o := range found {
			scans := strings.HasSuffix(o.name, "Scan") && strings.HasPrefix(o.table, "bridge_") && !slices.Contains(scanned, o.table)
			if scans || o.name == "Sort" && strings.Contains(text, "UPDLOCK") {
				bad = append(bad, fmt.Sprintf("%s %s: %.80s", o.name, o.table, strings.Join(strings.Fields(text), " ")))
			}
		}
	}
	switch {
	case rows.Err() != nil:
		return "", rows.Err()
	case seen == 0:
		return "", errors.New("the server shows no plans of ours")
	case len(bad) > 0:
		slices.Sort(bad)
		return strings.Join(slices.Compact(bad), "; "), nil
	}
	return "none does", nil
}

// An operator of a plan, with the table that it reads.
type operator struct{ name, table string }

// operators lists those of a plan in XML.
func operators(plan string) (all []operator, err error) {
	d := xml.NewDecoder(strings.NewReader(plan))
	var open []int // operators, by their places in all
	for {
		token, err := d.Token()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read a plan: %w", err)
		}
		switch e := token.(type) {
		case xml.StartElement:
			switch e.Name.Local {
			case "RelOp":
				open = append(open, len(all))
				all = append(all, operator{name: attribute(e, "PhysicalOp")})
			case "Object":
				if len(open) > 0 {
					all[open[len(open)-1]].table = strings.Trim(attribute(e, "Table"), "[]")
				}
			}
		case xml.EndElement:
			if e.Name.Local == "RelOp" {
				open = open[:len(open)-1]
			}
		}
	}
}

func attribute(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}
