package verifier

import (
	"context"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier/internal/consume"
)

const (
	// stagingPause and waitingPause are the shortest times for which a marker is held after it has
	// come from the staging queue, and from the waiting queue. By then the messages before it are
	// forwarded, touched or set aside.
	stagingPause = 500 * time.Millisecond
	waitingPause = time.Second
	// markerPatience is the longest time for which a marker is held while messages before it are not
	// judged. Then it goes back to its queue.
	markerPatience = 30 * time.Second
	// markerOften and markerRarely bound the time between two markers: markerOften while markers come
	// back, markerRarely while none do.
	markerOften  = time.Second
	markerRarely = 16 * time.Second
)

// A marker does not show whether the verifier that sent it works on a copy of the database. (A row
// committed for each marker would not show it either: if the marker comes again after the row's
// DELETE, the row is absent on the original too.) Nothing depends on this. A marker shows that all
// messages before it have passed a verifier, whichever database its sender uses, and only rows count
// that the reader itself has seen committed before the marker's look. A look in the future, by a
// copy's clock, does not count. Evidence (evidence.go) keeps a verifier on a copy from dropping the
// original's messages. Such a verifier may stage the messages of copied rows: duplicates, which a
// separate identity for the copy avoids (migrate.NewIdentity).

// A heldMarker is a marker that this verifier has taken from a queue.
type heldMarker struct {
	wire.Marker
	unacked *consume.Unacked
	taken   time.Time // when all messages before it had been unpacked
}

// endMarker acks a marker, or hands it back.
func endMarker(u *consume.Unacked) { u.From.Done(0, []*consume.Unacked{u}) }

// markers sends markers and holds received ones. Each goes through the staging queue and then
// through the waiting queue. Only the rounds of a stager call it, except receive.
type markers struct {
	ledger  driver.RecordedRows
	queues  *ownQueues
	rows    *dueRows
	carried *carriedSet

	sent time.Time     // when the last marker was sent
	wait time.Duration // until the next one

	mu   sync.Mutex
	held []heldMarker
}

func (ms *markers) receive(m heldMarker) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	ms.held = append(ms.held, m)
}

// ripe removes and returns the markers of a queue that were held for long enough. It hands back
// markers after markerPatience if publishing is still blocked or a message before them is still
// unjudged.
func (ms *markers) ripe(queue string, pause time.Duration, blocked bool) (ripe []heldMarker) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	var stay []heldMarker
	for _, m := range ms.held {
		age := time.Since(m.taken)
		switch {
		case m.unacked.From.Queue != queue || age < pause:
			stay = append(stay, m)
		case !blocked && !m.unacked.From.Short() && !ms.carried.unjudged(m.taken):
			ripe = append(ripe, m)
		case age < markerPatience:
			stay = append(stay, m)
		default:
			m.unacked.Back.Store(true)
			endMarker(m.unacked)
		}
	}
	ms.held = stay
	return ripe
}

// passOn moves markers from the staging queue to the waiting queue: it acks them when their copies
// are confirmed.
func (ms *markers) passOn(ctx context.Context) error {
	ripe := ms.ripe(ms.queues.staging, stagingPause, ms.queues.blocked())
	confirmed := false
	defer func() { // after a panic too
		for _, m := range ripe {
			if !confirmed { // a second copy does no harm
				m.unacked.Back.Store(true)
			}
			endMarker(m.unacked)
		}
	}()
	var copies []amqp.Publishing
	for _, m := range ripe {
		copies = append(copies, m.Publishing())
	}
	if err := ms.queues.send(ctx, ms.queues.waiting, copies...); err != nil {
		return fmt.Errorf("pass markers on: %w", err)
	}
	confirmed = true
	return nil
}

// evaluate finds the rows whose copies would have come before a marker from the waiting queue. Only
// rows count that this verifier itself has seen committed in time.
func (ms *markers) evaluate() {
	ripe := ms.ripe(ms.queues.waiting, waitingPause, false)
	defer func() { // after a panic too
		for _, m := range ripe {
			endMarker(m.unacked)
		}
	}()
	for _, m := range ripe {
		if ms.rows.isAhead(m.Look) { // the database's clock has gone back since
			continue
		}
		ms.wait = markerOften
		ms.rows.goneBy(m.Look)
	}
}

// send publishes a marker after a look, if a row was seen long enough before the look.
func (ms *markers) send(ctx context.Context, look time.Time) error {
	now := time.Now()
	if ms.rows.wasBlocked || ms.queues.blocked() || now.Sub(ms.sent) < ms.wait || !ms.rows.needsMarker(look) {
		return nil
	}
	ms.sent, ms.wait = now, min(2*ms.wait, markerRarely)
	if err := ms.queues.send(ctx, ms.queues.staging, wire.Marker{Ledger: ms.ledger.Identity(), Look: look}.Publishing()); err != nil {
		return fmt.Errorf("send a marker: %w", err)
	}
	return nil
}
