package sqlserver_test

import (
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// Style 126 omits a fraction that is zero.
func TestATimeMayHaveNoFraction(t *testing.T) {
	onBoth(t, func(t *testing.T, address string) {
		ledger := open(t, connect(t, address))
		second := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		for recordedAt, watermark := range map[time.Time]time.Time{
			second: second.Add(time.Millisecond),
			second.Add(time.Minute - time.Millisecond): second.Add(time.Minute),
		} {
			id := newID()
			must(t, recorded(t, ledger, id).Commit())
			execute(t, ledger.DB(), "UPDATE bridge_ledger SET recorded_at = '"+recordedAt.Format("2006-01-02T15:04:05.000")+"'")
			swept, err := ledger.Sweep(t.Context(), time.Hour, 10)
			must(t, err)
			if len(swept) != 1 || swept[0] != (driver.Orphan{ID: id, RecordedAt: recordedAt}) {
				t.Errorf("swept %v, must be %s of %v", swept, id, recordedAt)
			}
			before, err := ledger.SweptBefore(t.Context())
			must(t, err)
			if before.Before(watermark) {
				t.Errorf("the watermark is %v, must be %v at least", before, watermark)
			}
		}
	})
}
