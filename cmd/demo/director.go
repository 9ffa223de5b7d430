package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	glance   = 100 * time.Millisecond // between two looks at the progress
	patience = 60 * time.Second       // without any progress
)

// A director has the parts played: it starts the processes, kills some, and
// watches the databases.
type director struct {
	*theatre
	show display

	children sync.WaitGroup
	fail     context.CancelCauseFunc

	mu   sync.Mutex
	seen counts
}

// run plays the whole play. When it returns, all processes have ended and every
// message is where it will be.
func (d *director) run(ctx context.Context) error {
	ctx, d.fail = context.WithCancelCause(ctx)
	defer d.children.Wait()
	defer d.fail(nil)
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		d.watch(ctx)
	}()
	defer func() { d.fail(nil); <-watching }()

	receiver, err := d.begin(ctx, part{Name: receiverPart})
	if err != nil {
		return err
	}
	verifier, err := d.begin(ctx, part{Name: verifierPart})
	if err != nil {
		return err
	}
	d.show.event("the receiver and the verifier work; the shop opens")
	shop, shopCtx := errgroup.WithContext(ctx)
	for worker := range d.Plan.Workers {
		shop.Go(func() error { return d.keepShop(shopCtx, worker) })
	}
	defer func() { _ = shop.Wait() }()
	if err := d.await(shopCtx, func(c counts) bool { return c.Attempted >= d.Plan.Orders*3/10 }); err != nil {
		return err
	}
	if receiver, err = d.replace(ctx, receiver, time.Now()); err != nil {
		return err
	}
	if err := d.await(shopCtx, func(c counts) bool { return c.Attempted >= d.Plan.Orders/2 }); err != nil {
		return err
	}
	frozen := time.Now()
	if err := d.freeze(ctx, verifier); err != nil {
		return err
	}
	if verifier, err = d.replace(ctx, verifier, frozen); err != nil {
		return err
	}
	if err := shop.Wait(); err != nil {
		return err
	}
	d.show.event("the shop closes")
	return d.finish(ctx, receiver, verifier)
}

// keepShop has one shop process work, and another in its place whenever it dies.
func (d *director) keepShop(ctx context.Context, worker int) error {
	p := part{Name: shopPart, Worker: worker}
	var died time.Time
	for {
		c, err := d.begin(ctx, p)
		if err != nil {
			return err
		}
		if !died.IsZero() {
			back := time.Now()
			d.show.event("%s killed in mid-work (SIGKILL), replaced after %d ms", p, back.Sub(died).Milliseconds())
			if err := d.dbs.noteDeath(ctx, p.Name, died, back); err != nil {
				return err
			}
		}
		<-c.done
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case c.err == nil:
			return nil
		case !c.crashed():
			return fmt.Errorf("%s: %w", c.part, c.err)
		}
		died = time.Now()
	}
}

// begin starts a child and waits until it plays its part.
func (d *director) begin(ctx context.Context, p part) (*child, error) {
	p.World = d.world
	c, err := start(ctx, p, func(line string) { d.show.event("%s", line) })
	if err != nil {
		return nil, err
	}
	d.children.Go(func() {
		<-c.done
		if p.Name != shopPart && !c.dismissed.Load() {
			d.fail(fmt.Errorf("%s ended: %w", p, c.err))
		}
	})
	return c, c.awaitReady(ctx)
}

// replace kills a child and starts another one in its place. It notes that nobody
// has played the part since then.
func (d *director) replace(ctx context.Context, c *child, since time.Time) (*child, error) {
	died := c.kill()
	d.show.event("%s killed (SIGKILL)", c.part)
	c, err := d.begin(ctx, c.part)
	if err != nil {
		return nil, err
	}
	back := time.Now()
	d.show.event("%s replaced after %d ms", c.part, back.Sub(died).Milliseconds())
	return c, d.dbs.noteDeath(ctx, c.part.Name, since, back)
}

// freeze has the verifier stand still for a second, and wake up to its backlog.
// It returns at the worst moment for a crash: messages have arrived at the target,
// and the verifier has hardly had the time to delete their rows and ack them.
func (d *director) freeze(ctx context.Context, verifier *child) error {
	d.show.event("%s frozen for a second (SIGSTOP)", verifier.part)
	if err := verifier.freeze(ctx, time.Second); err != nil {
		return err
	}
	before, err := d.dbs.arrivals(ctx)
	if err != nil {
		return err
	}
	verifier.wake()
	for began := time.Now(); time.Since(began) < time.Second; time.Sleep(time.Millisecond) {
		now, err := d.dbs.arrivals(ctx)
		switch {
		case err != nil:
			return err
		case now > before:
			return sleep(ctx, 10*time.Millisecond) // more follow
		}
	}
	return nil
}

// finish waits for the last e-mails, then ends the verifier and the receiver.
// What an ended process still held is in its queue again; it is given to another
// one, until the queues are empty or nothing happens any more.
func (d *director) finish(ctx context.Context, receiver, verifier *child) error {
	if err := d.await(ctx, func(c counts) bool { return c.Sent >= c.Committed }); err != nil {
		return err
	}
	topology := d.topology()
	if err := d.empty(ctx, verifier, topology.Queue, topology.WaitingQueue()); err != nil {
		return err
	}
	if err := d.empty(ctx, receiver, d.Emails); err != nil {
		return err
	}
	c, err := d.dbs.counts(ctx)
	d.show.progress(c)
	return err
}

// empty ends a child once the queues that it takes from are empty.
func (d *director) empty(ctx context.Context, c *child, queues ...string) error {
	deadline := time.Now().Add(patience)
	for {
		ready, err := d.ready(ctx, queues)
		if err != nil {
			return err
		}
		if late := time.Now().After(deadline); ready == 0 || late {
			if err := c.stop(); err != nil {
				return err
			}
			if ready, err = d.ready(ctx, queues); err != nil || ready == 0 || late {
				return err
			}
			if c, err = d.begin(ctx, c.part); err != nil {
				return err
			}
		}
		if err := rest(ctx); err != nil {
			return err
		}
	}
}

// ready is the number of messages that are ready in the queues.
func (d *director) ready(ctx context.Context, queues []string) (int, error) {
	depths, err := d.depths(ctx)
	sum := 0
	for _, name := range queues {
		sum += depths[name]
	}
	return sum, err
}

// watch looks at the databases and shows the progress.
func (d *director) watch(ctx context.Context) {
	for {
		c, err := d.dbs.counts(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			d.fail(err)
			return
		}
		d.mu.Lock()
		d.seen = c
		d.mu.Unlock()
		d.show.progress(c)
		if rest(ctx) != nil {
			return
		}
	}
}

// await waits until the progress is as wanted, or there is none for too long: what
// is missing then, the verdict will tell.
func (d *director) await(ctx context.Context, wanted func(counts) bool) error {
	var last counts
	moved := time.Now()
	for {
		d.mu.Lock()
		c := d.seen
		d.mu.Unlock()
		if c != last {
			last, moved = c, time.Now()
		}
		if wanted(c) || time.Since(moved) > patience {
			return nil
		}
		if err := rest(ctx); err != nil {
			return err
		}
	}
}

// rest waits between two glances.
func rest(ctx context.Context) error { return sleep(ctx, glance) }

// sleep waits, or returns why ctx has ended.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
