package verifier

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/twoqueue/twoqueue/bridge/inspect"
)

const (
	// explainInterval is the longest time between two looks at who waits.
	explainInterval = 5 * time.Second
	// explainLimit bounds how many transactions are remembered as named.
	explainLimit = 1000
)

// explain names in the log whose open transactions hold messages up for long.
func (s *session) explain(ctx context.Context) {
	if s.opts.Watcher == nil {
		return
	}
	interval := min(s.opts.ExplainAfter, explainInterval)
	var told named
	s.jobs.explain.Run(ctx, func(ctx context.Context) (time.Duration, error) {
		slow := s.longest()
		now := time.Now()
		for i, m := range slow {
			if now.Sub(m.since()) < s.opts.ExplainAfter {
				slow = slow[:i]
				break
			}
		}
		if len(slow) == 0 {
			return interval, nil
		}
		err := s.name(ctx, slow[0], len(slow), &told)
		if other := rand.IntN(len(slow)); err == nil && other > 0 { // it may wait for another transaction
			err = s.name(ctx, slow[other], len(slow), &told)
		}
		return interval, err
	})
}

// name names in the log the sessions that m waits for.
func (s *session) name(ctx context.Context, m *message, waiting int, told *named) error {
	asking, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	holders, err := s.opts.Watcher.Holders(asking, m.staged.ID)
	if err != nil {
		return fmt.Errorf("ask who holds message %s up: %w", m.id(), err)
	}
	now := time.Now()
	for _, h := range holders {
		if !told.due(h, now, s.opts.ExplainAfter) {
			continue
		}
		s.log.Warn("a message waits for an open transaction", "message_id", m.id(), "waited", now.Sub(m.since()).Round(time.Millisecond),
			"waiting", waiting, "session", h.Session, "login", h.Login, "program", h.Program, "host", h.Host, "state", h.State,
			"open_since", h.Since, "statement", h.Statement)
	}
	return nil
}

// named remembers which transactions have been named in the log, and when to name
// them again.
type named map[transaction]again

type transaction struct {
	session string
	since   time.Time
}

type again struct {
	at   time.Time
	wait time.Duration
}

// due tells whether a holder is to be named now: at first, then after wait, twice
// that, and so on.
func (n *named) due(h inspect.Holder, now time.Time, wait time.Duration) bool {
	key := transaction{h.Session, h.Since}
	last, known := (*n)[key]
	switch {
	case !known:
		last.wait = wait
	case now.Before(last.at):
		return false
	}
	if *n == nil || len(*n) >= explainLimit {
		*n = make(named)
	}
	(*n)[key] = again{now.Add(last.wait), 2 * last.wait}
	return true
}
