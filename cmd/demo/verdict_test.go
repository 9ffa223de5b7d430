package main

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/cmd/internal/database"
)

// aWorld is databases as a small demo leaves them: a and b committed, c rolled
// back, d died; b came twice and was absorbed.
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
	change(t, dbs.diary, `INSERT INTO deaths VALUES ('verifier', 6600000, 6700000), ('shop', 1, 9000000)`)
	change(t, dbs.shop, `INSERT INTO orders VALUES ('a', 0, 0), ('b', 0, 1)`)
	change(t, dbs.post, `INSERT INTO arrivals VALUES ('a', 2010000), ('b', 6750000), ('b', 6800000)`)
	change(t, dbs.post, `INSERT INTO emails VALUES ('a', ''), ('b', '')`)
	return dbs
}

func change(t *testing.T, db *database.Database, statement string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

func verdictOf(t *testing.T, dbs *databases) *verdict {
	t.Helper()
	r, err := readRecords(context.Background(), dbs)
	if err != nil {
		t.Fatal(err)
	}
	return judge(r)
}

func TestVerdictOnAGoodEnd(t *testing.T) {
	v := verdictOf(t, aWorld(t))
	if !v.ok() {
		t.Errorf("not ok: %+v", v)
	}
	got := fmt.Sprintf("%d=%d %d=%d killed %d kills %d duplicates %d slowest %v latency %v calm %v",
		v.committed, v.delivered, v.rolledBack, v.dropped, v.killed, v.kills, v.duplicates, v.slowest, v.latency, v.calm)
	want := "2=2 2=2 killed 1 kills 2 duplicates 1 slowest 3.5s latency [10ms 250ms] calm [10ms]"
	if got != want {
		t.Errorf("verdict\n got %s\nwant %s", got, want)
	}
}

// Each way in which the bridge could fail is shown by doctored tables, and must
// end the program with an error.
func TestVerdictOnDoctoredTables(t *testing.T) {
	for _, c := range []struct {
		name   string
		doctor func(t *testing.T, dbs *databases)
		row    string
	}{
		{"lost", func(t *testing.T, dbs *databases) {
			change(t, dbs.post, `DELETE FROM emails WHERE message_id = 'a'`)
		}, "1, 0, 0"},
		{"rolled back and sent", func(t *testing.T, dbs *databases) {
			change(t, dbs.post, `INSERT INTO emails VALUES ('c', '')`)
		}, "0, 1, 0"},
		{"died and sent", func(t *testing.T, dbs *databases) {
			change(t, dbs.post, `INSERT INTO emails VALUES ('d', '')`)
		}, "0, 1, 0"},
		{"of nobody's", func(t *testing.T, dbs *databases) {
			change(t, dbs.post, `INSERT INTO emails VALUES ('e', '')`)
		}, "0, 1, 0"},
		{"handled twice", func(t *testing.T, dbs *databases) {
			change(t, dbs.post, `INSERT INTO emails VALUES ('b', '')`)
		}, "0, 0, 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dbs := aWorld(t)
			c.doctor(t, dbs)
			var out bytes.Buffer
			if code := conclude(&out, verdictOf(t, dbs)); code == 0 {
				t.Error("the exit code is 0")
			}
			if !strings.Contains(out.String(), c.row) || !strings.Contains(out.String(), "FAILED") {
				t.Errorf("the table does not say so:\n%s", &out)
			}
		})
	}
}

func TestMessagesLeftInQueuesAreAFailure(t *testing.T) {
	for _, r := range []records{{left: 1}, {dead: 1}} {
		var out bytes.Buffer
		if code := conclude(&out, judge(r)); code == 0 {
			t.Errorf("%+v: the exit code is 0", r)
		}
	}
	var out bytes.Buffer
	if code := conclude(&out, judge(records{})); code != 0 {
		t.Error("nothing left: the exit code is not 0")
	}
}

func TestPercentile(t *testing.T) {
	var sorted []time.Duration
	if got := percentile(sorted, 99); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
	for i := range 100 {
		sorted = append(sorted, time.Duration(i+1))
	}
	if p50, p99 := percentile(sorted, 50), percentile(sorted, 99); p50 != 50 || p99 != 99 {
		t.Errorf("p50 %d, p99 %d", p50, p99)
	}
}
