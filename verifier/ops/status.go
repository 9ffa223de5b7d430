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
	// rateSeconds is the number of seconds for which the page shows rates.
	rateSeconds = 60
	// The page shows at most
	shownFinished     = 20 // dead letters, and as many drops
	shownMessages     = 20 // waiting messages
	shownTargets      = 50 // unavailable targets
	shownKeys         = 20 // waiting order keys
	shownTransactions = 20 // open transactions
	// watchEvery is the shortest time between two queries for open transactions, and watchPatience
	// bounds such a query.
	watchEvery    = 2 * time.Second
	watchPatience = 2 * time.Second
)

// status collects the data of the status page.
type status struct {
	of    *Monitor
	began time.Time
	open  transactions

	mu      sync.Mutex
	counts  []verifier.Stats // one a second, the latest ones
	reasons map[string]int64 // of dead letters
	dead    lastFinished
	dropped lastFinished
}

// A finished message was dead-lettered or dropped. Only its ID and target are known here.
type finished struct {
	ID     string    `json:"id"`
	Target string    `json:"target"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason,omitempty"`
}

// lastFinished are the latest finished messages, the oldest first.
type lastFinished []finished

func (l *lastFinished) add(one finished) {
	if *l = append(*l, one); len(*l) > shownFinished {
		*l = append((*l)[:0], (*l)[1:]...)
	}
}

func newStatus(of *Monitor) *status {
	return &status{of: of, began: time.Now(), reasons: make(map[string]int64)}
}

func (s *status) done(e verifier.Event) {
	if e.Verdict != verifier.DeadLettered && e.Verdict != verifier.Dropped {
		return
	}
	one := finished{ID: e.ID, At: e.Done, Reason: e.Reason}
	if e.Reason != wire.DeadMalformed { // a malformed message has no target
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

// count stores the counts once a second, until ctx ends.
func (s *status) count(ctx context.Context) {
	sidejob.New("rates", s.of.logger).Run(ctx, func(context.Context) (time.Duration, error) {
		s.counted(s.of.stats())
		return time.Second, nil
	})
}

func (s *status) counted(stats verifier.Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts = append(s.counts, stats); len(s.counts) > rateSeconds+1 {
		s.counts = append(s.counts[:0], s.counts[1:]...)
	}
}

// rates returns, for each of the last seconds, how many messages had one verdict.
func (s *status) rates(of func(verifier.Stats) int64) []int64 {
	rates := make([]int64, 0, rateSeconds)
	for i := 1; i < len(s.counts); i++ {
		rates = append(rates, of(s.counts[i])-of(s.counts[i-1]))
	}
	return rates
}

// transactions are the open transactions according to the last query.
type transactions struct {
	mu      sync.Mutex
	at      time.Time
	holders []inspect.Holder
	err     error
}

// get queries the database if the last answer is old. So the database is queried only while the
// page is open, and by one request at a time.
func (t *transactions) get(ctx context.Context, running sidejob.Calls, question func(context.Context) ([]inspect.Holder, error)) ([]inspect.Holder, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.at) < watchEvery {
		return t.holders, t.err
	}
	// Not bound to the request, because the next request may get the same answer.
	t.holders, t.err = ask(context.WithoutCancel(ctx), running, watchPatience, question)
	t.at = time.Now()
	return t.holders, t.err
}
