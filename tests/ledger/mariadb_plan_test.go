package ledger_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// readsAll marks statements that read a whole table and lock nothing.
var readsAll = []string{
	"ORDER BY l.recorded_at, l.id", // Orphans
	"JOIN bridge_mark m ON",        // KeptEntities
	"_version",
	"information_schema",
}

// A ledger is usually empty. Whatever the server's statistics say, no statement by key may read
// the whole table: a locking one would wait for the rows of all open transactions.
func TestMariaDBReadsByKeyHoweverFewRowsThereAre(t *testing.T) {
	t.Parallel()
	server := servertest.StartMariaDB(t, &servers.MariaDBOptions{Fast: true, Config: []string{"general-log=ON", "log-output=TABLE"}})
	db := onServer(t, server)
	must(t, migrate.Inbox(t.Context(), db, migrate.MySQL))
	execute(t, db, "CREATE TABLE orders (n BIGINT AUTO_INCREMENT PRIMARY KEY, id BINARY(16) UNIQUE) ENGINE = InnoDB")

	ids := make([]uuid.UUID, 5)
	for i := range ids {
		for ids[i] = uuid.New(); slices.Contains(ids[i][:], 0); {
			ids[i] = uuid.New() // a key of the inbox has no NUL byte
		}
	}
	p := plans{DB: sqlx.NewDb(db, "mysql"), ids: ids}
	for _, table := range planned {
		execute(t, db, "ALTER TABLE "+table.name+" STATS_AUTO_RECALC = 0, STATS_PERSISTENT = 1")
	}
	statements := p.sent(t)
	t.Logf("%d statements", len(statements))
	for _, rows := range []int{0, 1, 5, 1000} {
		p.fill(t, rows) // the statistics still describe the previous rows
		for _, analyzed := range []bool{false, true} {
			if analyzed {
				p.analyze(t)
			}
			for _, statement := range statements {
				p.check(t, statement, fmt.Sprintf("%d rows, analyzed: %t", rows, analyzed))
			}
		}
	}
	p.fill(t, 0)
	for _, statement := range statements {
		p.check(t, statement, "0 rows, statistics of 1000")
	}
}

type plans struct {
	*sqlx.DB
	ids []uuid.UUID
}

// The tables that are read, with the columns and values of a row.
var planned = []struct{ name, columns, row string }{
	{"bridge_ledger", "id", "UNHEX('%[1]s')"},
	{"orders", "id", "UNHEX('%[1]s')"},
	{"bridge_inbox", "consumer, `key`", "'c', UNHEX('%[1]s')"},
	{"bridge_inbox_pending", "consumer, message_key, state, run, attempts, since_ms, due_ms, error, message", "'c', UNHEX('%[1]s'), 'ready', 'r', 1, 0, 0, '', 'x'"},
	{"bridge_mark", "consumer, name, mark", "'c', UNHEX('%[1]s'), ''"},
	{"bridge_kept", "consumer, entity, version, message", "'c', UNHEX('%[1]s'), 1, 'x'"},
}

// sent uses all verbs of a ledger and an inbox, and returns the statements in the server's log.
func (p plans) sent(t *testing.T) (statements []string) {
	t.Helper()
	execute(t, p.DB.DB, "TRUNCATE TABLE mysql.general_log")
	p.useLedger(t)
	p.useInbox(t)
	must(t, p.SelectContext(t.Context(), &statements, `SELECT DISTINCT argument FROM mysql.general_log
WHERE command_type IN ('Query', 'Execute') AND argument REGEXP '^(SELECT|INSERT|UPDATE|DELETE)' AND argument REGEXP 'bridge_|orders' AND argument NOT LIKE '%general_log%' AND argument NOT LIKE '%LIMIT 2'`))
	return slices.DeleteFunc(statements, func(s string) bool {
		return slices.ContainsFunc(readsAll, func(mark string) bool { return strings.Contains(s, mark) })
	})
}

func (p plans) useLedger(t *testing.T) {
	t.Helper()
	own, err := mysql.OpenOwnTable(t.Context(), p.DB.DB, bridge.OwnTable{Table: "orders", Column: "id"})
	must(t, err)
	ledger, err := mysql.Open(t.Context(), p.DB.DB)
	must(t, err)
	ids := p.ids
	tx := begin(t, p.DB.DB)
	for _, id := range ids {
		_, err := tx.ExecContext(t.Context(), "INSERT INTO orders (id) VALUES (?)", id[:])
		must(t, err)
	}
	must(t, own.Record(t.Context(), bridge.SQL(tx), driver.Plain(ids...)))
	must(t, ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(ids[:1]...)))
	must(t, ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(ids[1:]...)))
	must(t, tx.Commit())
	for _, l := range []driver.Ledger{ledger, own} {
		_, _, err := l.Committed(t.Context(), ids)
		must(t, err)
		expectOutcome(t, l, ids[0], driver.Committed)
	}
	carried := make([]driver.Entry, len(ids))
	for i := range carried {
		carried[i] = driver.Entry{ID: newID(), Message: []byte("x"), Unpublished: true}
	}
	tx = begin(t, p.DB.DB)
	must(t, ledger.Record(t.Context(), bridge.SQL(tx), carried[:1]))
	must(t, ledger.Record(t.Context(), bridge.SQL(tx), carried[1:]))
	must(t, tx.Commit())
	_, _, err = ledger.Due(t.Context(), driver.DueRow{StageAt: time.Now().Add(-time.Hour)}, 10)
	must(t, err)
	due, _, err := ledger.Due(t.Context(), driver.DueRow{}, 10)
	must(t, err)
	_, _, err = ledger.Due(t.Context(), due[0], 10)
	must(t, err)
	if claimed, err := ledger.Claim(t.Context(), due); err != nil || len(claimed) != len(carried) {
		t.Errorf("%v are claimed, %v", claimed, err)
	}
	for _, c := range carried {
		must(t, ledger.Touch(t.Context(), []uuid.UUID{c.ID}))
		forget(t, ledger, c.ID)
	}
	execute(t, p.DB.DB, "UPDATE bridge_ledger SET recorded_at = recorded_at - INTERVAL 2 HOUR ORDER BY id LIMIT 2")
	swept, err := ledger.Sweep(t.Context(), time.Hour, 10)
	if err != nil || len(swept) != 2 {
		t.Errorf("swept are %v, %v", swept, err)
	}
	_, err = ledger.SweptBefore(t.Context())
	must(t, err)
	forget(t, ledger, ids...)
}

func (p plans) useInbox(t *testing.T) {
	t.Helper()
	inbox, err := mysql.OpenInbox(t.Context(), p.DB.DB)
	must(t, err)
	message := driver.Pending{Key: string(p.ids[0][:]), State: driver.Ready, Run: "r", Message: []byte("x")}
	for _, v := range ledgertest.Verbs(inbox, "c", message) {
		tx := begin(t, p.DB.DB)
		must(t, v.Do(t.Context(), bridge.SQL(tx)))
		must(t, tx.Commit())
	}
}

// fill leaves this number of rows in each table, with the IDs of p first.
func (p plans) fill(t *testing.T, rows int) {
	t.Helper()
	for _, table := range planned {
		execute(t, p.DB.DB, "DELETE FROM "+table.name)
		values := make([]string, rows)
		for i := range values {
			id := newID()
			if i < len(p.ids) {
				id = p.ids[i]
			}
			values[i] = "(" + fmt.Sprintf(table.row, strings.ReplaceAll(id.String(), "-", "")) + ")"
		}
		if rows > 0 {
			execute(t, p.DB.DB, "INSERT INTO "+table.name+" ("+table.columns+") VALUES "+strings.Join(values, ", "))
		}
	}
}

func (p plans) analyze(t *testing.T) {
	t.Helper()
	for _, table := range planned {
		execute(t, p.DB.DB, "ANALYZE TABLE "+table.name)
	}
}

// check has the server explain the statement, and fails the test if it reads a table without its
// key.
func (p plans) check(t *testing.T, statement, when string) {
	t.Helper()
	rows, err := p.QueryxContext(t.Context(), "EXPLAIN FORMAT=TRADITIONAL "+statement)
	must(t, err)
	defer rows.Close()
	locks := !strings.HasPrefix(statement, "SELECT") || strings.Contains(statement, " FOR UPDATE") || strings.Contains(statement, " IN SHARE MODE")
	for rows.Next() {
		row := map[string]any{}
		must(t, rows.MapScan(row))
		word := func(column string) string { text, _ := row[column].([]byte); return string(text) }
		table, access, extra := word("table"), word("type"), word("Extra")
		switch {
		case table == "ids" || table == "j" || strings.HasPrefix(table, "<"): // a table that the statement itself makes
		case strings.HasPrefix(word("select_type"), "INSERT") || access == "" || table == "":
		case strings.Contains(statement, "due_ms <") && word("key") != "bridge_inbox_pending_due":
			t.Errorf("%s: %s is read by %q, key %q, %s: %s", when, table, access, word("key"), extra, statement)
		case table == "l" && strings.Contains(statement, "stage_at <=") && (word("key") != "bridge_ledger_stage_at" || strings.Contains(extra, "filesort")):
			t.Errorf("%s: %s is read by %q, key %q, %s: %s", when, table, access, word("key"), extra, statement)
		case access == "ALL" || access == "index" || word("key") == "" || locks && strings.Contains(extra, "filesort"):
			t.Errorf("%s: %s is read by %q, key %q, %s: %s", when, table, access, word("key"), extra, statement)
		}
	}
	must(t, rows.Err())
}
