package portable

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// The last release that parked messages made version 2, so it must refuse the tables of this
// release.
func TestTheReleaseThatParkedRefusesTablesWithoutParking(t *testing.T) {
	const parked = 2
	if err := checkVersion("ledger", ledgerVersion, parked); !errors.Is(err, bridge.ErrLaterSchema) {
		t.Errorf("version %d: %v, must be %v", ledgerVersion, err, bridge.ErrLaterSchema)
	}
	if err := CheckLedgerVersion(ledgerVersion - 1); !errors.Is(err, bridge.ErrNoSchema) {
		t.Errorf("version %d: %v, must be %v", ledgerVersion-1, err, bridge.ErrNoSchema)
	}
}

func TestAnotherNumberOfRowsIsNamed(t *testing.T) {
	for changed, says := range map[int64]string{0: "another identity", 1: "1 rows", 4: "4 rows are counted, must be 2"} {
		if err := ExpectChanged(changed, 2, uuid.Nil); !errors.Is(err, bridge.ErrOtherLedger) || !strings.Contains(err.Error(), says) {
			t.Errorf("%d rows: %v, must say %q", changed, err, says)
		}
	}
	if err := ExpectChanged(2, 2, uuid.Nil); err != nil {
		t.Error(err)
	}
}

// A statement that finds nothing may name no instance. A statement that names another one than the
// first ends the lookup.
func TestALookupOfRecentIDsComparesTheInstancesThatAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		answers []driver.Instance
		want    driver.Instance
		err     error
	}{
		"the first names none": {[]driver.Instance{"", "a"}, "a", nil},
		"the last names none":  {[]driver.Instance{"a", ""}, "a", nil},
		"both name one":        {[]driver.Instance{"a", "a"}, "a", nil},
		"another one":          {[]driver.Instance{"a", "", "b"}, "", bridge.ErrOtherInstance},
	} {
		n := 0
		l := &Ledger{verbs: Verbs{
			Most:     1,
			Classify: func(err error, _ string) error { return err },
			Recent: func(context.Context, []uuid.UUID, time.Duration) ([]uuid.UUID, driver.Instance, error) {
				n++
				return nil, c.answers[n-1], nil
			},
		}}
		if _, from, err := l.Recent(t.Context(), make([]uuid.UUID, len(c.answers)), time.Hour); from != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %q, %v", name, from, err)
		}
	}
}

func TestByBytesIsAllMessagesInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		messages := make([]driver.Carried, rapid.IntRange(1, 2500).Draw(t, "messages"))
		for i := range messages {
			messages[i].ID = uuid.UUID{byte(i >> 8), byte(i)}
		}
		for range rapid.IntRange(0, 5).Draw(t, "large") {
			at := rapid.IntRange(0, len(messages)-1).Draw(t, "at")
			messages[at].Message = make([]byte, rapid.IntRange(0, 2<<20).Draw(t, "size"))
		}
		n, most := 0, rapid.SampledFrom([]int{500, Chunk}).Draw(t, "most")
		for chunk := range byBytes(messages, most) {
			bytes := 0
			for _, m := range chunk {
				if m.ID != messages[n].ID {
					t.Fatalf("message %d is another", n)
				}
				bytes += len(m.Message)
				n++
			}
			if len(chunk) > most || bytes > carryBytes && len(chunk) > 1 || len(chunk) == 0 {
				t.Fatalf("a chunk of %d messages and %d bytes", len(chunk), bytes)
			}
		}
		if n != len(messages) {
			t.Fatalf("%d of %d messages", n, len(messages))
		}
	})
}
