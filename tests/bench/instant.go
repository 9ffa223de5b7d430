package main

import (
	"encoding/base64"
	"encoding/binary"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"
)

// An instant is a time on the machine's monotonic clock in ns. All processes read the same clock.
type instant int64

func now() instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // no such clock: not Linux
	}
	return instant(ts.Nano())
}

func (i instant) sub(earlier instant) time.Duration { return time.Duration(i - earlier) }

// bodies makes messages of one size. A body starts with its number; the rest is
// random text, which no database can compress.
type bodies struct {
	noise []byte
}

const noiseBytes = 1 << 20

func newBodies() *bodies {
	raw := make([]byte, noiseBytes*3/4)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(raw) // never fails
	return &bodies{[]byte(base64.StdEncoding.EncodeToString(raw))}
}

func (b *bodies) make(number uint64, size int) []byte {
	body := make([]byte, max(size, 8))
	binary.BigEndian.PutUint64(body, number)
	from := rand.IntN(len(b.noise) - len(body))
	copy(body[8:], b.noise[from:])
	return body
}

// numberOf reads the number of a body.
func numberOf(body []byte) (uint64, bool) {
	if len(body) < 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(body), true
}
