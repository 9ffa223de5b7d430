package main

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/cmd/internal/database"
)

// aWorld returns the databases after a small demo: a and b committed, c rolled back, and d's process
// died.
func aWorld(t *testing.T) *databases {
	t.Helper()
	file := func(name string) string { return "sqlite:" + filepath.Join(t.TempDir(), name) }
	dbs, err := openDatabases(t.Context(), world{Shop: file("shop"), Post: file("post"), Diary: file("diary")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(dbs.close)
	if err := dbs.create(t.Context()); err != nil {
		t.Fatal(err)
	}
	change(t, dbs.diary, `INSERT INTO transactions VALUES (0, 0, 1000000, 2000000), (0, 1, 3000000, 6500000), (0, 2, 7000000, 7100000), (1, 0, NULL, NULL)`)
	change(t, dbs.diary, `INSERT INTO attempts VALUES ('a', 0, 0), ('b', 0, 1), ('c', 0, 2), ('d', 1, 0)`)
	change(t, dbs.diary, `INSERT INTO deaths VALUES ('verifier', 6600000, 6700000), ('gateway', 1000000, 9000000), ('shop', 1, 9000000)`)
	change(t, dbs.shop, `INSERT INTO orders VALUES ('a', 0, 0), ('b', 0, 1)`)
	return dbs
}

func change(t *testing.T, db *database.Database, statement string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// recordsOf returns aWorld's records. It adds the arrivals at the target, where b came twice and one
// copy was absorbed, and the mail server's receipts: both e-mails came, and b's was doubtful.
func recordsOf(t *testing.T, dbs *databases) records {
	t.Helper()
	r, err := readRecords(context.Background(), dbs)
	if err != nil {
		t.Fatal(err)
	}
	r.arrivals = []receipt{{"a", 2010000}, {"b", 6750000}, {"b", 6800000}}
	r.emails = []receipt{{"a", 2020000}, {"b", 6810000}}
	r.doubts = map[string]bool{"b": true}
	return r
}

func TestVerdictOnAGoodEnd(t *testing.T) {
	v := judge(recordsOf(t, aWorld(t)))
	if !v.ok() {
		t.Errorf("not ok: %+v", v)
	}
	got := fmt.Sprintf("%d=%d %d=%d killed %d kills %d duplicates %d doubtful %d there %d slowest %v latency %v calm %v",
		v.committed, v.received, v.rolledBack, v.dropped, v.killed, v.kills, v.duplicates, v.doubtful, v.doubtfulThere,
		v.slowest, v.latency, v.calm)
	want := "2=2 2=2 killed 1 kills 3 duplicates 1 doubtful 1 there 1 slowest 3.5s latency [10ms 250ms] calm [10ms]"
	if got != want {
		t.Errorf("verdict\n got %s\nwant %s", got, want)
	}
	var out bytes.Buffer
	if code := conclude(&out, v); code != 0 {
		t.Errorf("the exit code is %d", code)
	}
	for _, line := range []string{"2 orders committed, 2 e-mails received, none twice and no other.\n",
		"1 were in doubt after a kill or a freeze; the mail server's log resolved them.\n"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("it does not say %q:\n%s", line, &out)
		}
	}
}

// Each failure of the bridge or the gateway must end the program with an error.
func TestVerdictOnABadEnd(t *testing.T) {
	for _, c := range []struct {
		name   string
		doctor func(r *records)
		row    string
	}{
		{"lost", func(r *records) { r.emails = r.emails[1:] }, "1, 0, 0"},
		{"doubtful and lost", func(r *records) { r.emails, r.doubts = r.emails[:1], map[string]bool{"b": false} }, "1, 0, 0"},
		{"rolled back and sent", func(r *records) { r.emails = append(r.emails, receipt{"c", 1}) }, "0, 1, 0"},
		{"died and sent", func(r *records) { r.emails = append(r.emails, receipt{"d", 1}) }, "0, 1, 0"},
		{"of no order", func(r *records) { r.emails = append(r.emails, receipt{"e", 1}) }, "0, 1, 0"},
		{"sent twice", func(r *records) { r.emails = append(r.emails, receipt{"b", 1}) }, "0, 0, 1"},
		{"rolled back and sent twice", func(r *records) { r.emails = append(r.emails, receipt{"c", 1}, receipt{"c", 2}) }, "0, 1, 1"},
		{"still in doubt", func(r *records) { r.pending = 1 }, "still pending at the gateways 1"},
		{"left in a queue", func(r *records) { r.left = 1 }, "left in the queues, dead 1, 0"},
		{"left in a row", func(r *records) { r.carried = 1 }, "left in rows of the ledger 1"},
		{"dead", func(r *records) { r.dead = 1 }, "left in the queues, dead 0, 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := recordsOf(t, aWorld(t))
			c.doctor(&r)
			wantFailed(t, r, c.row)
		})
	}
}

func wantFailed(t *testing.T, r records, row string) {
	t.Helper()
	var out bytes.Buffer
	if code := conclude(&out, judge(r)); code == 0 {
		t.Error("the exit code is 0")
	}
	table := strings.Join(strings.Fields(out.String()), " ")
	if !strings.Contains(table, row) || !strings.Contains(out.String(), "FAILED") {
		t.Errorf("the table does not say so:\n%s", &out)
	}
}
