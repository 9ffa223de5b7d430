package pipe

import "sync"

// A Counter counts up and down, and signals zero.
type Counter struct {
	mu    sync.Mutex
	n     int
	empty chan struct{} // closed at zero; nil if no caller waits for it
}

// Add adds n, which may be negative.
func (c *Counter) Add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n += n; c.n == 0 && c.empty != nil {
		close(c.empty)
		c.empty = nil
	}
}

// Value returns the count.
func (c *Counter) Value() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// Zero returns a channel that is closed once the counter is at zero.
func (c *Counter) Zero() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == 0 {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	if c.empty == nil {
		c.empty = make(chan struct{})
	}
	return c.empty
}
