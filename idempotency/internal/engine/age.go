package engine

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/wire"
)

// ErrTooOld: the message's key is older than Options.Retention, so it is unknown whether the
// message was handled.
var ErrTooOld = errors.New("too old to judge")

// purgeMargin is how much longer than Options.Retention keys are kept. Clocks of processes may
// differ by that much, so that no process purges a key that another still treats as new enough.
const purgeMargin = time.Hour

// credible is the earliest credible time in a key: an earlier one is a key of another kind, or of a
// sender without a clock.
var credible = time.Date(2015, 1, 1, 0, 0, 0, 0, time.UTC)

// JudgeAge returns a refusal if key, which is not in the inbox, may have been purged from it.
func (e *Keys) JudgeAge(key string) error {
	if e.Opts.Retention < 0 {
		return nil
	}
	made, _ := keyTime(key)
	if made.IsZero() {
		return nil
	}
	if age := time.Since(made); age > e.Opts.Retention {
		return &refusal{fmt.Errorf("%w: the key is from %s, and keys are kept for %v",
			ErrTooOld, made.Format(time.RFC3339), e.Opts.Retention)}
	}
	return nil
}

// A keyKind is a format that begins with a time, so that keys are in the order of their times.
type keyKind int

const (
	noTime keyKind = iota
	uuidV7
	ulid
)

// keyTime returns when a key was made, or the zero time if it does not contain that.
func keyTime(key string) (time.Time, keyKind) {
	made, kind := time.Time{}, noTime
	switch len(key) {
	case 36:
		id, err := uuid.Parse(key)
		// Capitals would not sort by time among small letters.
		if err == nil && id.Version() == 7 && !strings.ContainsAny(key, "ABCDEF") {
			kind = uuidV7
			made = wire.MadeAt(id)
		}
	case 26:
		var ms int64
		for i := range key {
			digit := strings.IndexByte(crockford, key[i])
			if digit < 0 || i == 0 && digit > 7 {
				return time.Time{}, noTime
			}
			if i < ulidTime {
				ms = ms<<5 | int64(digit)
			}
		}
		kind, made = ulid, time.UnixMilli(ms)
	}
	if made.Before(credible) {
		return time.Time{}, noTime
	}
	return made.UTC(), kind
}

const (
	crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ" // the digits of a ULID
	ulidTime  = 10                                 // the number of digits that are the time
)

// firstKey returns a key that sorts before all keys of a kind made at t or later, and after all
// earlier ones.
func firstKey(kind keyKind, t time.Time) string {
	ms := t.UnixMilli()
	if kind == uuidV7 {
		hex := fmt.Sprintf("%012x", ms)
		return hex[:8] + "-" + hex[8:]
	}
	var key [ulidTime]byte
	for i := range key {
		key[i] = crockford[ms>>(5*(ulidTime-1-i))&31]
	}
	return string(key[:])
}
