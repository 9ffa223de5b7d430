package verifier

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

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
)

// A marker names no row, so it does not show whether its verifier works on a copy of the database.
// Committing a row for each marker would not show that either. A marker may come again after the
// row's DELETE, because its channel was lost before the ack, or because it was passed on twice:
// then the row is absent although no database is a copy. If the row stayed for long, it would have
// to be swept, and a later copy of the database would have it too.
//
// Nothing depends on this. A marker shows that all messages before it have passed a verifier,
// whichever database its own verifier uses, and only rows count that the reader itself has seen
// committed before the marker's look. If the clock of a copy is ahead, the look is in the future
// and does not count. Evidence (evidence.go) keeps a verifier on a copy from dropping the
// original's messages, and log, State and metrics report it. Such a verifier may stage the messages
// of copied rows: duplicates, which a separate identity for the copy avoids (migrate.NewIdentity).

// A heldMarker is a marker that this verifier has taken from a queue.
type heldMarker struct {
	wire.Marker
	unacked *consume.Unacked
	taken   time.Time // when all messages before it had been unpacked
}

// endMarker acks a marker, or hands it back.
func endMarker(u *consume.Unacked) { u.From.Done(0, []*consume.Unacked{u}) }

func (g *stager) receive(m heldMarker) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.markers = append(g.markers, m)
}

// ripe removes and returns the markers of a queue that were held for long enough. It hands back
// markers after markerPatience if publishing is still blocked or a message before them is still
// unjudged.
func (g *stager) ripe(queue string, pause time.Duration, blocked bool) (ripe []heldMarker) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var stay []heldMarker
	for _, m := range g.markers {
		age := time.Since(m.taken)
		switch {
		case m.unacked.From.Queue != queue || age < pause:
			stay = append(stay, m)
		case !blocked && !m.unacked.From.Short() && !g.carried.unjudged(m.taken):
			ripe = append(ripe, m)
		case age < markerPatience:
			stay = append(stay, m)
		default:
			m.unacked.Back.Store(true)
			endMarker(m.unacked)
		}
	}
	g.markers = stay
	return ripe
}

// passMarkersOn moves markers from the staging queue to the waiting queue: it acks them when their
// copies are confirmed.
func (g *stager) passMarkersOn(ctx context.Context) error {
	markers := g.ripe(g.queue, stagingPause, g.blocked())
	confirmed := false
	defer func() { // after a panic too
		for _, m := range markers {
			if !confirmed { // a second copy does no harm
				m.unacked.Back.Store(true)
			}
			endMarker(m.unacked)
		}
	}()
	var copies []amqp.Publishing
	for _, m := range markers {
		copies = append(copies, m.Publishing())
	}
	if err := g.sendTo(ctx, g.waiting, copies...); err != nil {
		return fmt.Errorf("pass markers on: %w", err)
	}
	confirmed = true
	return nil
}

// evaluateMarkers finds the rows whose copies would have come before a marker from the waiting
// queue. Only rows count that this verifier itself has seen committed in time.
func (g *stager) evaluateMarkers() {
	markers := g.ripe(g.waiting, waitingPause, false)
	defer func() { // after a panic too
		for _, m := range markers {
			endMarker(m.unacked)
		}
	}()
	for _, m := range markers {
		if m.Look.After(g.at.Add(time.Since(g.looked))) { // the database's clock has gone back since
			continue
		}
		g.wait = markerOften
		g.goneBy(m.Look)
	}
}

// goneBy notes the rows that have no copy in a queue, after a marker of that look.
func (g *stager) goneBy(look time.Time) {
	if g.anew {
		return
	}
	left := g.undeleted()
	for id, c := range g.candidates {
		if c.before(look) && !left[id] && !g.carried.has(id) {
			c.gone = true
			g.candidates[id] = c
		}
	}
}

// before reports whether a row was seen long enough before a look.
func (c candidate) before(look time.Time) bool { return !c.seen.After(look.Add(-seenBefore)) }

// sendMarker publishes a marker after a look, if a row was seen long enough before the look.
func (g *stager) sendMarker(ctx context.Context, at time.Time) error {
	now := time.Now()
	if g.anew || g.blocked() || now.Sub(g.sent) < g.wait || !g.needsMarker(at) {
		return nil
	}
	g.sent, g.wait = now, min(2*g.wait, markerRarely)
	if err := g.send(ctx, wire.Marker{Ledger: g.ledger.Identity(), Look: at}.Publishing()); err != nil {
		return fmt.Errorf("send a marker: %w", err)
	}
	return nil
}

func (g *stager) needsMarker(at time.Time) bool {
	left := g.undeleted()
	for id, c := range g.candidates {
		if c.before(at) && !left[id] && !g.carried.has(id) {
			return true
		}
	}
	return false
}
