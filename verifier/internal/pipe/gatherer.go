// Package pipe has the parts that connect the stages of a verifier's pipeline: a Gatherer between
// two stages, a Counter of the items in a stage, and pauses.
package pipe

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// A Gatherer collects items while their consumer is busy, so batches grow with the load by
// themselves. The number of unacked messages bounds its size, since each message is in one place
// only.
type Gatherer[T any] struct {
	More chan struct{} // woken when there are items

	mu    sync.Mutex
	items []T
}

// NewGatherer returns an empty Gatherer.
func NewGatherer[T any]() *Gatherer[T] {
	return &Gatherer[T]{More: make(chan struct{}, 1)}
}

// Add adds items.
func (g *Gatherer[T]) Add(items ...T) {
	g.mu.Lock()
	g.items = append(g.items, items...)
	g.mu.Unlock()
	g.Wake()
}

// Count returns the number of gathered items.
func (g *Gatherer[T]) Count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.items)
}

// Wake wakes the consumer.
func (g *Gatherer[T]) Wake() { Wake(g.More) }

// Take returns at most limit gathered items, without waiting.
func (g *Gatherer[T]) Take(limit int) []T {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.items) <= limit {
		items := g.items
		g.items = nil
		return items
	}
	items := g.items[:limit:limit]
	g.items = g.items[limit:]
	g.Wake()
	return items
}

// Remove removes and returns the items for which must returns true.
func (g *Gatherer[T]) Remove(must func(T) bool) (removed []T) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.items = slices.DeleteFunc(g.items, func(item T) bool {
		if !must(item) {
			return false
		}
		removed = append(removed, item)
		return true
	})
	return removed
}

// Wake sends to a channel with room for one element, unless it has one.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Pause waits for d, or until ctx ends. Under load a stage pauses for some milliseconds to gather a
// larger burst, because cost is per burst.
func Pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// NewBackOff returns pauses that grow from first to most.
func NewBackOff(first, most time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = first, most
	return b
}
