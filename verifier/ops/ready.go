package ops

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
)

// evidencePatience is how long messages may wait for evidence before the worker is not ready.
const evidencePatience = time.Minute

// Ready returns nil if messages are judged and forwarded: the ledger's database is usable, the
// broker is connected and accepts messages, the proof has passed, the verifier does not drain, no
// message has waited for evidence for more than a minute (rule 6 of package bridge), DELETEs do not
// fail, and no stream of messages of another ledger comes. Otherwise it returns an error for each
// missing condition, by errors.Join, without confidential details; the log and the status page say
// more. It queries the database, and returns within 3 s.
func (m *Monitor) Ready(ctx context.Context) error {
	of := m.watched.Load()
	if of == nil {
		return errors.New("starting: database and broker have not both answered yet")
	}
	state := of.verifier.State()
	if state.Stopping {
		return errors.New("stopping: forwarding the judged messages")
	}
	var missing []error
	if m.check(ctx, of) != nil {
		missing = append(missing, errors.New("database: not reachable, or not usable as a ledger"))
	}
	if state.Blocked != "" {
		missing = append(missing, errors.New("broker: accepts no messages, or refuses a connection to publish; see its alarms and its connection limits"))
	}
	if foreign := m.foreign.stream(time.Now()); foreign != "" {
		missing = append(missing, errors.New(foreign))
	}
	if since := state.Waiting.EvidenceSince; !since.IsZero() && time.Since(since) > evidencePatience {
		missing = append(missing, errors.New("evidence: messages that look rolled back wait; nothing shows that the senders commit on this database server. Is the server a copy, or an old primary?"))
	}
	if state.DeleteErr != nil {
		missing = append(missing, errors.New("database: refuses to delete the rows of delivered messages; see the log"))
	}
	if state.Session.IsZero() {
		text := "session: none yet; the proof has not passed"
		if state.Err != nil {
			switch CauseOf(state.Err) {
			case Broker:
				missing = append(missing, errors.New("broker: no connection, or the broker refuses an operation"))
			case Queue:
				missing = append(missing, errors.New("broker: a queue has other properties than it must have"))
			case Proof:
				if errors.Is(state.Err, bridge.ErrOtherInstance) {
					missing = append(missing, errors.New("database: two servers answer at its address, or the server was restarted"))
					break
				}
				missing = append(missing, errors.New("proof: the database failed the proof"))
			}
			text = "session: none; see the log"
		}
		missing = append(missing, errors.New(text))
	}
	return errors.Join(missing...)
}

// notes are lines for a ready verifier about unavailable targets: these delay only their own
// messages.
func (m *Monitor) notes() []string {
	switch n := len(m.state().Targets); n {
	case 0:
		return nil
	case 1:
		return []string{"targets: 1 is unavailable, and its messages wait; the log and the status page name it"}
	default:
		return []string{fmt.Sprintf("targets: %d are unavailable, and their messages wait; the log and the status page name them", n)}
	}
}
