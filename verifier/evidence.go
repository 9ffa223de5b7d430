package verifier

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/proof"
)

// evidence records whether senders commit on the session's server (rule 6 of package bridge, and
// 'Copies of the database' in the package comment). Until a session has evidence, messages that look
// rolled back are withheld: they wait in the room, circulate through the waiting queue, or hold their
// order key.
type evidence struct {
	*resources
	proven *proof.Proven
	room   *waitingRoom
	began  time.Time // of the session

	mu            sync.Mutex
	found         time.Time // zero: not yet
	withheldSince time.Time // zero: no message is withheld
	lastWithheld  time.Time // when a message was last withheld
	lastCommitted time.Time // when a committed message was last found
	reported      bool      // the log has reported the withheld messages
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
	if len(committed) == 0 || !e.isNeeded(time.Now()) {
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
		if e.connections.noteRefusal(err, int(e.room.settling.Load())) {
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
	if first, withheld := e.noteFound(time.Now()); first {
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
	e.refresh(now, e.room.countWithheld())
	if e.reportDue(now, e.opts.ExplainAfter) {
		e.log.Warn("messages that look rolled back are not dropped: no message has been found that a sender committed on this database server since the session began. "+
			"They wait for one. Is the server a copy, or an old primary?", "messages", e.room.countWithheld(), "instance", string(e.proven.Instance()))
	}
}

// isFound reports whether there is evidence.
func (e *evidence) isFound() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.found.IsZero()
}

// isNeeded notes that a committed message was found, and reports whether evidence is still missing.
func (e *evidence) isNeeded(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastCommitted = now
	return e.found.IsZero()
}

// noteFound notes that evidence was found. It reports whether this evidence is the first, and whether
// messages wait for it.
func (e *evidence) noteFound(now time.Time) (first, withheld bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.found.IsZero() {
		return false, false
	}
	e.found = now
	return true, !e.withheldSince.IsZero()
}

func (e *evidence) noteWithheld(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lastWithheld = now; e.withheldSince.IsZero() {
		e.withheldSince = now
	}
}

// refresh is called periodically with the number of messages that are withheld here. If others
// circulate through the waiting queue, one of them comes again within longestWithheld.
func (e *evidence) refresh(now time.Time, messages int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case messages > 0:
		e.lastWithheld = now
	case now.Sub(e.lastWithheld) > 2*longestWithheld: // another verifier has judged them
		e.withheldSince = time.Time{}
	}
}

// reportDue returns true, once, when messages have been withheld for patience.
func (e *evidence) reportDue(now time.Time, patience time.Duration) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reported || !e.found.IsZero() || e.withheldSince.IsZero() || now.Sub(e.withheldSince) < patience {
		return false
	}
	e.reported = true
	return true
}

// state returns, for State, when evidence was found, or else since when messages are withheld.
func (e *evidence) state() (found, withheld time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.found.IsZero() {
		return e.found, time.Time{}
	}
	return time.Time{}, e.withheldSince
}

// stayTime returns how long a withheld message of the waiting queue stays while others wait behind
// it. The time grows while no committed message is found, so a quiet system does not spin.
func (e *evidence) stayTime(now time.Time) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	last := e.began
	if e.lastCommitted.After(last) {
		last = e.lastCommitted
	}
	return min(now.Sub(last)/4, longestWithheld)
}
