package ops

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/verifier"
)

// A report is /status.json.
type report struct {
	Now    time.Time `json:"now"`
	Began  time.Time `json:"began"` // the worker
	Queue  string    `json:"queue"`
	Ledger string    `json:"ledger,omitempty"` // its identity

	State    string     `json:"state"` // running, starting, failing or stopping
	Session  *time.Time `json:"session,omitempty"`
	Sessions int64      `json:"sessions"`
	Error    string     `json:"error,omitempty"`   // why there is no session, or why the database is not usable
	Blocked  string     `json:"blocked,omitempty"` // why the broker accepts no messages

	Foreign string `json:"foreign,omitempty"` // messages of another ledger keep coming

	Evidence *time.Time `json:"evidence,omitempty"` // when the session found that the senders commit on its server

	Verdicts []verdictReport `json:"verdicts"`
	Restaged int64           `json:"restaged"` // carried messages that were staged again
	Swept    int64           `json:"swept"`

	Due      int        `json:"due"`                 // carried messages whose stage time has come
	DueSince *time.Time `json:"due_since,omitempty"` // stage time of the first of them
	// messages that wait for their time; null: not counted yet, or this ledger has none
	Delayed *delayedReport `json:"delayed"`
	// carried messages that could not be staged: refused or unreadable
	Unstageable int `json:"unstageable"`

	Held     int           `json:"held"`
	Waiting  waitingReport `json:"waiting"`
	Settling int           `json:"settling"`

	Oldest             []messageReport    `json:"oldest"`
	Transactions       transactionsReport `json:"transactions"`
	Targets            []targetReport     `json:"targets"` // the unavailable targets with the most messages
	TargetsUnavailable int                `json:"targets_unavailable"`
	Keys               []keyReport        `json:"keys"` // the keys whose first message has waited longest; null without ordered queues
	KeysWaiting        int                `json:"keys_waiting"`

	DeadByReason []reasonReport `json:"dead_by_reason"`
	Dead         []finished     `json:"dead"`    // the newest first
	Dropped      []finished     `json:"dropped"` // the newest first
}

// delayedReport is the last count of messages that wait for their time.
type delayedReport struct {
	At      time.Time  `json:"at"`
	Waiting int        `json:"waiting"`           // up to 10,000
	Next    *time.Time `json:"next,omitempty"`    // by the database's clock
	Overdue float64    `json:"overdue,omitempty"` // seconds since the stage time of the first due row without a published copy
}

type verdictReport struct {
	Verdict verifier.Verdict `json:"verdict"`
	Total   int64            `json:"total"`
	Rates   []int64          `json:"rates"` // in each of the last seconds
}

// waitingReport counts the held messages that wait, as verifier.Waiting does.
type waitingReport struct {
	Transaction   int        `json:"transaction"`
	Evidence      int        `json:"evidence"`
	EvidenceSince *time.Time `json:"evidence_since,omitempty"`
	TooLarge      int        `json:"too_large"`
}

type messageReport struct {
	ID     string    `json:"id"`
	Target string    `json:"target"`
	Since  time.Time `json:"since"`
}

// transactionsReport has the open transactions that have written to the ledger.
type transactionsReport struct {
	Known bool             `json:"known"` // this kind of database can list them
	Error string           `json:"error,omitempty"`
	Open  []inspect.Holder `json:"open"`
}

type targetReport struct {
	Target   string    `json:"target"`
	Reason   string    `json:"reason"` // in words
	Fix      string    `json:"fix"`
	Messages int       `json:"messages"`
	Since    time.Time `json:"since"`
	// when the first message goes to the dead queue
	DeadLetterAt *time.Time `json:"dead_letter_at,omitempty"`
}

// keyReport is an order key with messages that wait for its first one.
type keyReport struct {
	Key      string    `json:"key"`
	Queue    string    `json:"queue"`
	ID       string    `json:"id"` // of the first
	Since    time.Time `json:"since"`
	Messages int       `json:"messages"` // waiting for it
}

type reasonReport struct {
	Reason string `json:"reason"`
	Count  int64  `json:"count"`
}

// report returns the present report.
func (s *status) report(ctx context.Context) report {
	state, stats := s.of.state(), s.of.stats()
	r := report{
		Now: time.Now().UTC(), Began: s.began.UTC(), Queue: s.of.topology.Queue, Sessions: stats.Sessions,
		Restaged: stats.Restaged, Swept: stats.Swept, Due: state.Due, Unstageable: state.Unstageable,
		Held: state.Held, Settling: state.Settling, Evidence: utc(state.Evidence),
		Waiting: waitingReport{state.Waiting.Transaction, state.Waiting.Evidence, utc(state.Waiting.EvidenceSince), state.Waiting.TooLarge},
		Blocked: state.Blocked, Oldest: []messageReport{}, Targets: []targetReport{}, DeadByReason: []reasonReport{},
	}
	r.Session = utc(state.Session)
	if state.Due > 0 {
		r.DueSince = new(r.Now.Add(-state.Overdue))
	}
	if d := s.of.delayed.Load(); d != nil {
		r.Delayed = &delayedReport{d.at.UTC(), d.waiting, utc(d.next), d.overdue.Seconds()}
	}
	for _, m := range state.Oldest[:min(len(state.Oldest), shownMessages)] {
		r.Oldest = append(r.Oldest, messageReport{m.ID, m.Target.String(), m.Since.UTC()})
	}
	slices.SortStableFunc(state.Targets, func(a, b verifier.UnavailableTarget) int { return cmp.Compare(b.Messages, a.Messages) })
	r.TargetsUnavailable = len(state.Targets)
	for _, t := range state.Targets[:min(len(state.Targets), shownTargets)] {
		r.Targets = append(r.Targets, targetReport{t.Target.String(), t.Problem, t.Fix, t.Messages, t.Since.UTC(), utc(t.DeadLetterAt)})
	}
	if s.of.topology.OrderedShards > 0 {
		r.Keys, r.KeysWaiting = []keyReport{}, state.KeysWaiting
		for _, k := range state.Keys[:min(len(state.Keys), shownKeys)] {
			r.Keys = append(r.Keys, keyReport{k.Key, k.Queue, k.ID, k.Since.UTC(), k.Messages})
		}
	}
	r.Transactions = s.transactions(ctx)
	r.State = s.phase(state)
	r.Foreign = s.of.foreign.stream(r.Now)
	_, unusable := s.of.lastCheck()
	if err := cmp.Or(state.Err, unusable); err != nil {
		r.Error = err.Error()
	}
	if of := s.of.watched.Load(); of != nil {
		r.Ledger = of.ledger.Identity().String()
	}
	s.addFinished(&r, stats)
	return r
}

// addFinished adds the counts by verdict and by reason, and the last finished messages.
func (s *status) addFinished(r *report, stats verifier.Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range []struct {
		verdict verifier.Verdict
		of      func(verifier.Stats) int64
	}{
		{verifier.Forwarded, func(s verifier.Stats) int64 { return s.Forwarded }},
		{verifier.Dropped, func(s verifier.Stats) int64 { return s.Dropped }},
		{verifier.DeadLettered, func(s verifier.Stats) int64 { return s.DeadLettered }},
		{verifier.SetAside, func(s verifier.Stats) int64 { return s.SetAside }},
	} {
		r.Verdicts = append(r.Verdicts, verdictReport{v.verdict, v.of(stats), s.rates(v.of)})
	}
	for reason, n := range s.reasons {
		r.DeadByReason = append(r.DeadByReason, reasonReport{reason, n})
	}
	slices.SortFunc(r.DeadByReason, func(a, b reasonReport) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason))
	})
	r.Dead, r.Dropped = newest(s.dead), newest(s.dropped)
}

// utc returns nil for the zero time.
func utc(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// phase returns the state of the verifier in one word.
func (s *status) phase(state verifier.State) string {
	if state.Stopping {
		return "stopping"
	}
	_, unusable := s.of.lastCheck()
	switch {
	case state.Err != nil, unusable != nil:
		return "failing"
	case !state.Session.IsZero():
		return "running"
	}
	return "starting"
}

func (s *status) transactions(ctx context.Context) transactionsReport {
	r := transactionsReport{Open: []inspect.Holder{}}
	of := s.of.watched.Load()
	if of == nil {
		return r
	}
	r.Known = of.watcher != nil
	holders, err := s.open.get(ctx, s.of.transactionCalls, func(ctx context.Context) ([]inspect.Holder, error) {
		if err := s.of.check(ctx, of); err != nil || of.watcher == nil {
			return nil, err
		}
		return of.watcher.OpenTransactions(ctx, 0, shownTransactions)
	})
	if err != nil {
		r.Error = err.Error()
	}
	r.Open = append(r.Open, holders...)
	return r
}

// newest returns the messages in reverse order.
func newest(l lastFinished) []finished {
	out := append([]finished{}, l...)
	slices.Reverse(out)
	return out
}
