package emailgateway_test

import (
	"context"
	"database/sql"
	"fmt"
)

// gate is a place between two commits at which the database holds a gateway: a trigger waits for
// a lock that the test holds.
type gate struct {
	w    *world
	conn *sql.Conn
}

const gateLock = 4711

// gate closes a gate: before a statement on the table takes effect, for rows that meet the
// condition.
func (w *world) gate(when, table, condition string) *gate {
	w.t.Helper()
	conn, err := w.db.Conn(w.t.Context())
	w.must(err)
	w.t.Cleanup(func() { _ = conn.Close() })
	_, err = conn.ExecContext(w.t.Context(), fmt.Sprintf(`
CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock(%[1]d);
	IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER gate BEFORE %[2]s ON %[3]s FOR EACH ROW WHEN (%[4]s) EXECUTE FUNCTION gate();
SELECT pg_advisory_lock(%[1]d)`, gateLock, when, table, condition))
	w.must(err)
	return &gate{w, conn}
}

// waiting selects the sessions of this database that wait at the gate, or for a row locked by one
// that waits there.
const waiting = `pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`

// reached waits until this number of statements waits at the gate.
func (g *gate) reached(statements int) {
	g.w.t.Helper()
	var n int
	g.w.eventually("they are at the gate", func() bool {
		g.w.must(g.w.db.QueryRow(`SELECT count(*) FROM ` + waiting).Scan(&n))
		return n == statements
	}, func() string { return fmt.Sprint(n) })
}

// open opens the gate and ends the sessions that wait there: their process is dead, and its open
// transactions must not commit. A living gateway may arrive meanwhile.
func (g *gate) open() {
	g.w.t.Helper()
	var dead string
	g.w.must(g.conn.QueryRowContext(context.Background(), `WITH waiting AS MATERIALIZED (SELECT pid, pg_terminate_backend(pid) FROM `+waiting+`)
SELECT coalesce(string_agg(pid::text, ','), '0') FROM waiting`).Scan(&dead))
	g.w.eventually("the sessions of the killed gateways have ended", func() bool {
		var n int
		g.w.must(g.w.db.QueryRow(`SELECT count(*) FROM pg_stat_activity WHERE pid IN (` + dead + `)`).Scan(&n))
		return n == 0
	})
	g.lift()
}

// lift opens the gate, also for the sessions that wait there.
func (g *gate) lift() {
	g.w.t.Helper()
	_, err := g.conn.ExecContext(context.Background(), fmt.Sprintf(`SELECT pg_advisory_unlock(%d)`, gateLock))
	g.w.must(err)
	var table string
	g.w.must(g.w.db.QueryRow(`SELECT event_object_table FROM information_schema.triggers WHERE trigger_name = 'gate' LIMIT 1`).Scan(&table))
	_, err = g.w.db.Exec(`DROP TRIGGER gate ON ` + table)
	g.w.must(err)
}
