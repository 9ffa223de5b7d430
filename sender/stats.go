package sender

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// Stats counts a Sender's messages since it was made. The counts only grow. Each attempt to send a
// message counts separately.
type Stats struct {
	Recorded  uint64 // recorded in a transaction, committed or not
	Carried   uint64 // of these: carried by their rows
	Staged    uint64 // given to the broker; a carried one that is published again counts again
	Confirmed uint64 // of the staged ones: confirmed by the broker
	Refused   uint64 // of the staged ones: in a publication for which the broker closed the channel (bridge.Refusal)
	Failed    uint64 // of the staged ones: returned, nacked, or not confirmed; the broker may have some of them

	// Groups counts the staged messages by the number of messages that travelled in each.
	Groups Histogram
	// Confirms has the durations of the confirmed publications, in seconds, including the wait for a
	// connection.
	Confirms Histogram

	// Waiting is the size of the messages that wait for their confirms, in bytes. A waiting call
	// counts as at least 8 KiB, and a carried message as 256 bytes more than its row holds.
	Waiting int

	// Outage reports whether the broker is out: the last publication of messages without an order key
	// failed for a reason that time repairs, or its confirm is late. Err is the reason of its failure,
	// an outage or not; nil: it was confirmed. Since is when failures last began or ended; zero: none
	// has happened.
	Outage bool
	Err    error
	Since  time.Time
}

// A Histogram counts values by size.
type Histogram struct {
	Bounds []float64 // the upper bounds, growing
	Counts []uint64  // values up to each bound and above the one before; the last counts values above all bounds
	Sum    float64   // of all values
}

func (h *Histogram) observe(value float64) {
	i, _ := slices.BinarySearch(h.Bounds, value)
	h.Counts[i]++
	h.Sum += value
}

func (h *Histogram) clone() Histogram {
	return Histogram{h.Bounds, slices.Clone(h.Counts), h.Sum}
}

func newHistogram(bounds ...float64) Histogram {
	return Histogram{Bounds: bounds, Counts: make([]uint64, len(bounds)+1)}
}

// counters are the counts of Stats.
type counters struct {
	recorded, carried, staged, confirmed, refused, failed atomic.Uint64

	mu       sync.Mutex
	groups   Histogram
	confirms Histogram
}

func newCounters() *counters {
	return &counters{
		groups:   newHistogram(1, 2, 5, 10, 20, 50, 100, 200, 500),
		confirms: newHistogram(.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10),
	}
}

// addRecorded counts recorded messages.
func (c *counters) addRecorded(messages []encoded) {
	c.recorded.Add(uint64(len(messages)))
	for _, m := range messages {
		if m.carried {
			c.carried.Add(1)
		}
	}
}

// addStaged counts records that are packed and given to the broker.
func (c *counters) addStaged(records [][]byte, packing wire.Packing) {
	c.staged.Add(uint64(len(records)))
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(records) > 0 {
		n, _ := packing.First(records)
		c.groups.observe(float64(n))
		records = records[n:]
	}
}

// addResult counts the records of a publication by its result.
func (c *counters) addResult(records int, took time.Duration, err error) {
	switch n := uint64(records); {
	case err == nil:
		c.confirmed.Add(n)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.confirms.observe(took.Seconds())
	case bridge.Refusal(err) != nil:
		c.refused.Add(n)
	default:
		c.failed.Add(n)
	}
}

// Stats returns the counts so far.
func (s *Sender) Stats() Stats {
	c := s.count
	stats := Stats{
		Confirmed: c.confirmed.Load(), Refused: c.refused.Load(), Failed: c.failed.Load(),
		Waiting: s.stager.waiting(),
	}
	for _, stager := range s.ordered.stagers {
		stats.Waiting += stager.waiting()
	}
	if s.carrier != nil {
		stats.Waiting += s.carrier.waitingBytes()
	}
	// Loaded after the results, so that the parts are never more than the whole.
	stats.Staged, stats.Carried = c.staged.Load(), c.carried.Load()
	stats.Recorded = c.recorded.Load()
	stats.Since, stats.Err = s.outage.state()
	stats.Outage = isOutage(stats.Err)
	c.mu.Lock()
	defer c.mu.Unlock()
	stats.Groups, stats.Confirms = c.groups.clone(), c.confirms.clone()
	return stats
}
