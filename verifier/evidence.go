package verifier

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/proof"
)

// evidence records whether senders commit on the session's server (rule 6 of package bridge). A
// copy of the database, or an old primary that has come back, has the ledger's identity and passes
// the proof, and there every message looks rolled back. So a session drops nothing before it has
// found committed a row that was recorded after the session began. Until then messages that look
// rolled back are withheld: they wait in the room, circulate through the waiting queue, or hold
// their order key.
type evidence struct {
	*shared
	proven *proof.Proven
	room   *waitingRoom
	began  time.Time // of the session

	mu       sync.Mutex
	found    time.Time // zero: not yet
	withheld time.Time // since when messages are withheld; zero: none are
	seen     time.Time // when a message was last withheld
	hit      time.Time // when a committed message was last found
	told     bool      // the log has reported the withheld messages
}

const (
	// evidenceMargin is the largest assumed difference between the clocks of senders and verifiers,
	// where only the time of staging shows a row's age.
	evidenceMargin = time.Minute
	// longestWithheld is the longest time that withheld messages of the waiting queue stay while
	// others wait behind them and no committed message comes.
	longestWithheld = 30 * time.Second
)

// seek looks for evidence among committed messages, before their rows can be deleted.
func (e *evidence) seek(ctx context.Context, committed ...*message) error {
	if len(committed) == 0 || !e.sought(time.Now()) {
		return nil
	}
	var ids []uuid.UUID
	for _, m := range committed {
		if e.mayProve(m, time.Now()) {
			ids = append(ids, m.staged.ID)
		}
	}
	if len(ids) > 0 && !e.ledger.Features().KeepsRows {
		asking, cancel := context.WithTimeout(ctx, ledgerTimeout)
		defer cancel()
		var err error
		// The age is measured before the database reads its clock.
		ids, err = e.proven.Recent(asking, ids, time.Since(e.began))
		if e.connections.refuses(err, int(e.room.settling.Load())) {
			return nil // a later message may be evidence
		}
		if err != nil {
			return fmt.Errorf("query for evidence: %w", err)
		}
	}
	if len(ids) == 0 {
		e.log.Debug("committed messages are no evidence", "messages", len(committed), "message_id", committed[0].id(),
			"session_age", time.Since(e.began))
		return nil
	}
	if first, withheld := e.find(time.Now()); first {
		e.room.release()
		if withheld {
			e.log.Info("evidence found: senders commit on this database server; messages that look rolled back are dropped from now on",
				"message_id", ids[0].String(), "instance", string(e.proven.Instance()))
		}
	}
	return nil
}

// mayProve reports whether a committed message may prove that a sender has committed since the
// session began. A message that a verifier has staged from its row proves nothing: if it was
// delayed, its row's recorded_at is the time when it was first due (driver.Entry.NotBefore),
// perhaps long after its sender's commit. On an own table only the time of staging counts, with a
// margin. On a ledger this check saves queries about a backlog.
func (e *evidence) mayProve(m *message, now time.Time) bool {
	at, began := m.staged.StagedAt, e.began
	switch {
	case m.staged.Restaged:
		return false
	case e.ledger.Features().KeepsRows:
		return at.After(began.Add(evidenceMargin)) && at.Before(now.Add(evidenceMargin))
	}
	return at.IsZero() || at.After(began.Add(-sweepMargin))
}

// report logs once that messages wait for evidence, unless it comes soon.
func (e *evidence) report(now time.Time) {
	e.look(now, e.room.withheld())
	if e.untold(now, e.opts.ExplainAfter) {
		e.log.Warn("messages that look rolled back are not dropped: no message has been found that a sender committed on this database server since the session began. "+
			"They wait for one. Is the server a copy, or an old primary?", "messages", e.room.withheld(), "instance", string(e.proven.Instance()))
	}
}

// isFound reports whether there is evidence.
func (e *evidence) isFound() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.found.IsZero()
}

// sought notes that a committed message was found, and reports whether evidence is still needed.
func (e *evidence) sought(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hit = now
	return e.found.IsZero()
}

// find reports whether this evidence is the first, and whether messages wait for it.
func (e *evidence) find(now time.Time) (first, withheld bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.found.IsZero() {
		return false, false
	}
	e.found = now
	return true, !e.withheld.IsZero()
}

func (e *evidence) withhold(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.seen = now; e.withheld.IsZero() {
		e.withheld = now
	}
}

// look is called periodically with the number of withheld messages here. If others circulate
// through the waiting queue, one of them comes again within longestWithheld.
func (e *evidence) look(now time.Time, messages int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case messages > 0:
		e.seen = now
	case now.Sub(e.seen) > 2*longestWithheld: // another verifier has judged them
		e.withheld = time.Time{}
	}
}

// untold reports, once, that messages have been withheld for patience.
func (e *evidence) untold(now time.Time, patience time.Duration) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.told || !e.found.IsZero() || e.withheld.IsZero() || now.Sub(e.withheld) < patience {
		return false
	}
	e.told = true
	return true
}

// state returns, for State, when evidence was found, or else since when messages are withheld.
func (e *evidence) state() (found, withheld time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.found.IsZero() {
		return e.found, time.Time{}
	}
	return time.Time{}, e.withheld
}

// stayTime returns how long a withheld message of the waiting queue stays while others wait behind
// it. The time grows while no committed message is found, so a quiet system does not spin.
func (e *evidence) stayTime(now time.Time) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	last := e.began
	if e.hit.After(last) {
		last = e.hit
	}
	return min(now.Sub(last)/4, longestWithheld)
}
