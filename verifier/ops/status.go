package ops

import (
	"context"
	"sync"
	"time"

	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier"
	"github.com/twoqueue/twoqueue/verifier/sidejob"
)

const (
	// minute is for how many seconds back the page shows rates.
	minute = 60
	// lastEnds is how many dead letters, and how many drops, the page shows.
	lastEnds = 20
	// shownMessages is how many of those that wait the page shows.
	shownMessages = 20
	// shownTargets is how many targets that take nothing it shows.
	shownTargets = 50
	// shownKeys is how many held order keys it shows.
	shownKeys = 20
	// shownTransactions is how many open transactions it shows.
	shownTransactions = 20
	// watchEvery is how long what the database has told about transactions is shown
	// before it is asked again, if somebody looks.
	watchEvery = 2 * time.Second
	// watchPatience bounds the question.
	watchPatience = 2 * time.Second
)

// status is what the status page shows.
type status struct {
	of    *Monitor
	began time.Time
	open  transactions

	mu      sync.Mutex
	counts  []verifier.Stats // one a second, the last ones
	reasons map[string]int64 // of dead letters
	dead    ends
	dropped ends
}

// An end is a dead letter or a drop: nothing of the message but where it was to go.
type end struct {
	ID     string    `json:"id"`
	Target string    `json:"target"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason,omitempty"`
}

// ends are the last of them, the oldest first.
type ends []end

func (e *ends) add(one end) {
	if *e = append(*e, one); len(*e) > lastEnds {
		*e = append((*e)[:0], (*e)[1:]...)
	}
}

func newStatus(of *Monitor) *status {
	return &status{of: of, began: time.Now(), reasons: make(map[string]int64)}
}

func (s *status) done(e verifier.Event) {
	if e.Verdict != verifier.DeadLettered && e.Verdict != verifier.Dropped {
		return
	}
	one := end{ID: e.ID, At: e.Done, Reason: e.Reason}
	if e.Reason != wire.DeadMalformed { // such a one has no target
		one.Target = e.Message.Target().String()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Verdict == verifier.Dropped {
		s.dropped.add(one)
		return
	}
	s.dead.add(one)
	s.reasons[e.Reason]++
}

// count takes the counts once a second, until ctx ends.
func (s *status) count(ctx context.Context) {
	sidejob.New("rates", s.of.logger).Run(ctx, func(context.Context) (time.Duration, error) {
		s.counted(s.of.stats())
		return time.Second, nil
	})
}

func (s *status) counted(stats verifier.Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts = append(s.counts, stats); len(s.counts) > minute+1 {
		s.counts = append(s.counts[:0], s.counts[1:]...)
	}
}

// rates are, for each of the last seconds, how many messages ended so.
func (s *status) rates(of func(verifier.Stats) int64) []int64 {
	rates := make([]int64, 0, minute)
	for i := 1; i < len(s.counts); i++ {
		rates = append(rates, of(s.counts[i])-of(s.counts[i-1]))
	}
	return rates
}

// transactions are those that are open, as the database has told a moment ago.
type transactions struct {
	mu      sync.Mutex
	at      time.Time
	holders []inspect.Holder
	err     error
}

// get asks the database if the last answer is old. The database is asked only while somebody looks at
// the page, and by one request at a time.
func (t *transactions) get(ctx context.Context, running sidejob.Calls, question func(context.Context) ([]inspect.Holder, error)) ([]inspect.Holder, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.at) < watchEvery {
		return t.holders, t.err
	}
	// Not bound to the request: the answer is for the next one too.
	t.holders, t.err = ask(context.WithoutCancel(ctx), running, watchPatience, question)
	t.at = time.Now()
	return t.holders, t.err
}
