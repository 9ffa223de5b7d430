package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
)

// withheldPatience is how long messages may be withheld before the worker is not ready.
const withheldPatience = time.Minute

// ready returns nil if messages are judged and forwarded. It says in few words what is
// missing, since everybody may ask; the log and the status page say more.
func (w *worker) ready(ctx context.Context) error {
	select {
	case <-w.stopping:
		return errors.New("stopping: what has been judged is being forwarded")
	default:
	}
	parts := w.parts.Load()
	if parts == nil {
		return errors.New("starting: database and broker have not both answered yet")
	}
	var missing []error
	if w.check(ctx) != nil {
		missing = append(missing, errors.New("database: not reachable, or not usable as a ledger"))
	}
	state := parts.verifier.State()
	if state.Blocked != "" {
		missing = append(missing, errors.New("broker: takes no messages, or allows no connection to publish; see its alarms and its limits of connections"))
	}
	if foreign := w.foreign.stream(time.Now()); foreign != "" {
		missing = append(missing, errors.New(foreign))
	}
	if !state.WithheldSince.IsZero() && time.Since(state.WithheldSince) > withheldPatience {
		missing = append(missing, errors.New("evidence: messages look rolled back, and nothing shows that the senders commit on this database server: is it a copy, or an old primary? They wait"))
	}
	if state.DeleteErr != nil {
		missing = append(missing, errors.New("database: refuses to delete the rows of delivered messages; see the log"))
	}
	if state.Session.IsZero() {
		text := "session: none yet; the proof has not passed"
		if state.Err != nil {
			switch causeOf(state.Err) {
			case causeBroker:
				missing = append(missing, errors.New("broker: no connection, or it refuses something"))
			case causeQueue:
				missing = append(missing, errors.New("broker: a queue is not as it must be"))
			case causeProof:
				if errors.Is(state.Err, bridge.ErrOtherInstance) {
					missing = append(missing, errors.New("database: two servers answer under its address, or it was restarted"))
					break
				}
				missing = append(missing, errors.New("proof: the database is not to be trusted"))
			}
			text = "session: none; see the log"
		}
		missing = append(missing, errors.New(text))
	}
	return errors.Join(missing...)
}

// notes are what a ready worker says beside that: targets that take nothing hold up their own
// messages only.
func (w *worker) notes() []string {
	switch n := len(w.state().Targets); n {
	case 0:
		return nil
	case 1:
		return []string{"targets: 1 takes nothing, and its messages wait; the log and the status page name it"}
	default:
		return []string{fmt.Sprintf("targets: %d take nothing, and their messages wait; the log and the status page name them", n)}
	}
}
