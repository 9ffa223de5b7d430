package idempotency_test

import (
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
)

// uuidFrom returns the nth UUIDv7 of a message with a given age.
func uuidFrom(age time.Duration, n uint32) string {
	id := uuid.UUID{6: 0x70, 8: 0x80}
	ms := time.Now().Add(-age).UnixMilli()
	for i := range 6 {
		id[i] = byte(ms >> (8 * (5 - i)))
	}
	binary.BigEndian.PutUint32(id[12:], n)
	return id.String()
}

const day = 24 * time.Hour

// claimed inserts a claim with a given age into the inbox.
func (r *receiver) claimed(key string, age time.Duration) {
	r.T.Helper()
	r.Exec(`INSERT INTO bridge_inbox (consumer, key, claimed_at) VALUES ('shop', ?, unixepoch() - ?)`, key, int64(age/time.Second))
}

func TestAPurgeForgetsOldKeysOnly(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, idempotency.Options{Retention: 10 * day})
	const old, young = 1300, 700
	for n := range uint32(old) {
		r.claimed(uuidFrom(20*day, n), 20*day)
		if n < young {
			r.claimed(uuidFrom(5*day, n), 5*day)
			r.claimed(fmt.Sprintf("z order %d", n), time.Duration(n%2*20)*day)
		}
	}
	r.claimed(uuidFrom(10*day+30*time.Minute, 1), 10*day+30*time.Minute) // within the margin
	r.claimed(uuidFrom(20*day, old), 5*day)                              // has waited long in a queue
	r.claimed(uuidFrom(5*day, old), 20*day)                              // its sender's clock was ahead
	r.Exec(`INSERT INTO bridge_inbox (consumer, key, claimed_at) VALUES ('billing', 'b', 0)`)
	n, err := r.dedup.Purge(t.Context(), r.DB)
	if err != nil || n != old+young/2 {
		t.Errorf("forgot %d, %v; want %d", n, err, old+young/2)
	}
	if left := r.Keys(); left != young+young/2+4 {
		t.Errorf("%d are left, want %d", left, young+young/2+4)
	}
	r.wantStats(idempotency.Stats{Purged: uint64(n), PurgePasses: 1})
	if n, err := r.dedup.Purge(t.Context(), r.DB); n != 0 || err != nil {
		t.Errorf("another pass forgot %d, %v", n, err)
	}
	forEver := r.newDedup("billing", idempotency.Options{Retention: -1})
	if n, err := forEver.Purge(t.Context(), r.DB); n != 0 || err != nil {
		t.Errorf("of keys for ever %d were forgotten, %v", n, err)
	}
}

// Handling messages purges without calls of Purge, and faster than it claims. If the purge fails,
// the deliveries are still handled.
func TestHandlingPurges(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{"all that is old": nil, "nothing while it fails": receivertest.ErrNetwork} {
		t.Run(name, func(t *testing.T) {
			r := newReceiver(t, idempotency.Options{Retention: 10 * day})
			r.Inbox.FailClaimed = failure
			const messages = 601
			for n := range uint32(messages) {
				r.claimed(uuidFrom(20*day, n), 20*day)
			}
			for n := range uint32(messages) {
				receivertest.Must(t, r.dedup.Handle(t.Context(), r.DB, r.Delivery(uuidFrom(0, n)), func(context.Context, *sql.Tx) error { return nil }))
			}
			want, left := uint64(messages), messages
			if failure != nil {
				want, left = 0, 2*messages
			}
			if stats := r.dedup.Stats(); stats.Handled != messages || stats.Purged != want || r.Keys() != left {
				t.Errorf("%d are left, stats are %+v", r.Keys(), stats)
			}
		})
	}
}
