package engine

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

func uuidAt(t time.Time, random byte) string {
	id := uuid.UUID{6: 0x70, 8: 0x80, 15: random}
	ms := t.UnixMilli()
	for i := range 6 {
		id[i] = byte(ms >> (8 * (5 - i)))
	}
	return id.String()
}

func ulidAt(t time.Time, random byte) string {
	return firstKey(ulid, t) + strings.Repeat("0", 15) + string(crockford[random%32])
}

func TestAKeyShowsItsTime(t *testing.T) {
	for key, want := range map[string]string{
		"01936f5e-7b1c-7cc0-9a3b-0a1b2c3d4e5f": "2024-11-27T20:44:43.164Z",
		"01ARZ3NDEKTSV4RRFFQ69G5FAV":           "2016-07-30T23:54:10.259Z", // the ULID specification's example

		"01936F5E-7B1C-7CC0-9A3B-0A1B2C3D4E5F":   "", // not in the order of time
		"01936f5e-7b1c-4cc0-9a3b-0a1b2c3d4e5f":   "", // version 4
		"01936f5e7b1c7cc09a3b0a1b2c3d4e5f":       "",
		"{01936f5e-7b1c-7cc0-9a3b-0a1b2c3d4e5f}": "",
		"00000000-0000-7000-8000-000000000001":   "", // of 1970
		"01arz3ndektsv4rrffq69g5fav":             "",
		"81ARZ3NDEKTSV4RRFFQ69G5FAV":             "", // more than 128 bits
		"01ARZ3NDEKTSV4RRFFQ69G5FAI":             "", // I is no digit
		"00000000000000000000004711":             "", // a number
		"order 4711":                             "",
		"":                                       "",
	} {
		made, _ := keyTime(key)
		got := ""
		if !made.IsZero() {
			got = made.Format("2006-01-02T15:04:05.000Z07:00")
		}
		if got != want {
			t.Errorf("%q is of %q, want %q", key, got, want)
		}
	}
}

func TestFirstKeySeparatesEarlierKeysFromLaterOnes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.UnixMilli(rapid.Int64Range(credible.UnixMilli()+1, 1<<45).Draw(t, "time"))
		for kind, key := range map[keyKind]func(time.Time, byte) string{uuidV7: uuidAt, ulid: ulidAt} {
			if made, got := keyTime(key(at, 1)); got != kind || made.UnixMilli() != at.UnixMilli() {
				t.Fatalf("%s is of kind %d from %v", key(at, 1), got, made)
			}
			if before := key(at.Add(-time.Millisecond), 255); before >= firstKey(kind, at) {
				t.Errorf("%s is not before %s", before, firstKey(kind, at))
			}
			if from := key(at, 0); from < firstKey(kind, at) {
				t.Errorf("%s is before %s", from, firstKey(kind, at))
			}
		}
	})
}

// If the clocks of two receivers differ by less than an hour, a key that one of them purges is not
// new for the other.
func TestNoKeyIsForgottenThatIsStillTakenForNew(t *testing.T) {
	now := time.Now()
	rapid.Check(t, func(t *rapid.T) {
		retention := time.Duration(rapid.Int64Range(int64(time.Hour), int64(1000*time.Hour)).Draw(t, "retention"))
		made := now.Add(-time.Duration(rapid.Int64Range(0, int64(1100*time.Hour)).Draw(t, "age")))
		claimed := time.Duration(rapid.Int64Range(0, int64(1100*time.Hour)).Draw(t, "claimed ago"))
		behind := time.Duration(rapid.Int64Range(0, int64(purgeMargin)).Draw(t, "the other's clock is behind"))
		key := uuidAt(made, 1)
		forgotten := len(oldKeys([]driver.Claimed{{Key: key, Age: claimed}}, now, retention+purgeMargin)) > 0
		if tooOld := now.Add(-behind).Sub(made.Truncate(time.Millisecond)) > retention; forgotten && !tooOld {
			t.Errorf("forgotten, and not too old to judge")
		}
	})
}
