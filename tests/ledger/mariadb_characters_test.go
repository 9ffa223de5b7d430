package ledger_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/mysql"
)

// The server converts a parameter if character_set_connection differs from character_set_client.
// A receiver must read exactly the bytes that another receiver has stored.
func testMariaDBInboxKeepsBytesAsTheyAre(t *testing.T) {
	config, plain := mariaDB(t)
	config.Params = map[string]string{"character_set_connection": "latin1"}
	odd := connectMariaDB(t, config)
	must(t, migrate.Inbox(t.Context(), plain, migrate.MySQL))
	const failure = "gr\u00fc\u00dfe \u20ac \U0001F4A5"               // utf8mb4, in a statement of latin1
	consumer, key := "caf\u00e9 \u20ac", "gr\u00fc\u00dfe \u20ac\xff" // bytes, in an encoding of the caller's
	write, err := mysql.OpenInbox(t.Context(), odd)
	must(t, err)
	read, err := mysql.OpenInbox(t.Context(), plain)
	must(t, err)
	ctx, writing := t.Context(), begin(t, odd)
	tx := bridge.SQL(writing)
	did := func(what string, done bool, err error) {
		t.Helper()
		if err != nil || !done {
			t.Errorf("%s: %t, %v", what, done, err)
		}
	}
	same := func(what string, got []byte) {
		t.Helper()
		if !bytes.Equal(got, notLatin1) {
			t.Errorf("%s has the message %q, must be %q", what, got, notLatin1)
		}
	}

	claimed, err := write.Claim(ctx, tx, consumer, []string{key})
	did("claim", len(claimed) == 1, err)
	added, err := write.AddPending(ctx, tx, consumer, driver.Pending{Key: key, State: driver.Ready, Run: "1", Message: notLatin1, Error: failure}, 0)
	did("add", added, err)
	added, err = write.AddPending(ctx, tx, consumer, driver.Pending{Key: "bare", State: driver.Ready, Run: "1"}, time.Hour)
	did("add without a message", added, err)
	attached, err := write.AttachMessage(ctx, tx, consumer, "bare", "1", notLatin1)
	did("attach", attached, err)
	_, err = write.LockMark(ctx, tx, consumer, key)
	must(t, err)
	kept, err := write.Keep(ctx, tx, consumer, key, 1, notLatin1)
	did("keep", kept, err)
	must(t, writing.Commit())

	reading := begin(t, plain)
	tx = bridge.SQL(reading)
	for _, k := range []string{key, "bare"} {
		found, p, err := read.LookUp(ctx, tx, consumer, k)
		must(t, err)
		if p == nil || found != (k == key) {
			t.Fatalf("%q: claimed %t, pending %v", k, found, p)
		}
		same(k, p.Message)
		if k == key && p.Error != failure {
			t.Errorf("the error is %q, must be %q", p.Error, failure)
		}
	}
	_, message, err := read.FirstKept(ctx, tx, consumer, key)
	must(t, err)
	same("the kept one", message)
	must(t, reading.Rollback())

	changing := begin(t, odd)
	tx = bridge.SQL(changing)
	taken, err := write.TakePending(ctx, tx, consumer, driver.Ready)
	did("take", taken != nil && taken.Key == key, err)
	changed, err := write.ChangePending(ctx, tx, consumer, "1", driver.Pending{Key: key, State: driver.Failed, Run: "2", Message: notLatin1, Error: failure}, 0)
	did("change", changed, err)
	_, p, err := write.LookUp(ctx, tx, consumer, key)
	must(t, err)
	same("the changed one", p.Message)
	if p.Error != failure {
		t.Errorf("the changed error is %q, must be %q", p.Error, failure)
	}
	listed, err := write.ListPending(ctx, tx, consumer, driver.Failed, "", 10)
	did("list", len(listed) == 1 && listed[0].Key == key, err)
	removed, err := write.RemovePending(ctx, tx, consumer, key, "2")
	did("remove", removed, err)
	claims, err := write.Claimed(ctx, tx, consumer, "", 10)
	did("list claims", len(claims) == 1 && claims[0].Key == key, err)
	forgotten, err := write.Forget(ctx, tx, consumer, []string{key}, -time.Hour)
	did("forget", forgotten == 1, err)
	must(t, changing.Commit())
}
