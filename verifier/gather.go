package verifier

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A gatherer collects items while their consumer is busy, so batches grow with the load by
// themselves. The number of unacked messages bounds its size, since each message is in one place
// only.
type gatherer[T any] struct {
	mu    sync.Mutex
	items []T
	more  chan struct{}
}

func newGatherer[T any]() *gatherer[T] {
	return &gatherer[T]{more: make(chan struct{}, 1)}
}

func (g *gatherer[T]) add(items ...T) {
	g.mu.Lock()
	g.items = append(g.items, items...)
	g.mu.Unlock()
	g.wake()
}

// count returns the number of gathered items.
func (g *gatherer[T]) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.items)
}

func (g *gatherer[T]) wake() {
	select {
	case g.more <- struct{}{}:
	default:
	}
}

// take returns at most limit gathered items, without waiting.
func (g *gatherer[T]) take(limit int) []T {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.items) <= limit {
		items := g.items
		g.items = nil
		return items
	}
	items := g.items[:limit:limit]
	g.items = g.items[limit:]
	g.wake()
	return items
}

// remove removes and returns the items for which must returns true.
func (g *gatherer[T]) remove(must func(T) bool) (removed []T) {
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

// pause waits for d, or until ctx ends. Under load a stage pauses for some
// milliseconds to gather a larger burst: cost is per burst (see loadMeter).
func pause(ctx context.Context, d time.Duration) {
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
