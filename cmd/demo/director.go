package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	glance   = 100 * time.Millisecond // between two queries of the progress
	patience = 60 * time.Second       // without any progress
)

// A director starts the processes, kills and freezes some of them, and watches the databases. At the
// end it plays the gateways' operator.
type director struct {
	*theatre
	show   *display
	doubts map[string]bool // the IDs of doubtful e-mails: whether the mail server had the e-mail

	children sync.WaitGroup
	fail     context.CancelCauseFunc

	mu   sync.Mutex
	seen counts
}

// run runs the whole demo. When it returns, all processes have ended and no message moves any more.
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

	var posts [gateways]*child
	for i := range posts {
		var err error
		if posts[i], err = d.begin(ctx, part{Name: gatewayPart, Worker: i}); err != nil {
			return err
		}
	}
	verifier, err := d.begin(ctx, part{Name: verifierPart})
	if err != nil {
		return err
	}
	d.show.event("two gateways and the verifier work; the shop opens")
	shop, shopCtx := errgroup.WithContext(ctx)
	for worker := range d.Plan.Workers {
		shop.Go(func() error { return d.keepShop(shopCtx, worker) })
	}
	defer func() { _ = shop.Wait() }()
	for _, mishap := range []struct {
		percent int // of the orders
		happen  func() error
	}{
		{15, func() (err error) { posts[0], err = d.strike(ctx, posts[0]); return err }},
		{30, func() error { return d.freezeGateway(ctx, posts[1]) }},
		{40, func() (err error) { posts[1], err = d.strike(ctx, posts[1]); return err }},
		{60, func() (err error) { verifier, err = d.strikeVerifier(ctx, verifier); return err }},
	} {
		err := d.await(shopCtx, func(c counts) bool { return c.Attempted >= d.Plan.Orders*mishap.percent/100 })
		if err != nil {
			return err
		}
		if err := mishap.happen(); err != nil {
			return err
		}
	}
	if err := shop.Wait(); err != nil {
		return err
	}
	if err := d.keepShop(ctx, d.Plan.Workers); err != nil {
		return err
	}
	d.show.event("the shop closes")
	return d.finish(ctx, posts[:], verifier)
}

// keepShop runs one shop process, and starts a successor whenever it is killed.
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
		err = c.end()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			return nil
		case !c.Killed():
			return fmt.Errorf("%s: %w", c.part, err)
		}
		died = time.Now()
	}
}

// begin starts a child and waits until it works. The end of ctx kills it (SIGKILL).
func (d *director) begin(ctx context.Context, p part) (*child, error) {
	p.World = d.world
	c, err := d.cast(ctx, p)
	if err != nil {
		return nil, err
	}
	d.children.Go(func() {
		err := c.end()
		if p.Name != shopPart && !c.dismissed.Load() {
			d.fail(fmt.Errorf("%s ended: %w", p, err))
		}
	})
	return c, c.awaitReady(ctx)
}

// cast starts the process for a part.
func (d *director) cast(ctx context.Context, p part) (*child, error) {
	if p.Name == gatewayPart { // its log is not shown: the verdict uses the mail server's
		return start(p, d.gateway(ctx, p.host()), gatewayReady, func(string) {})
	}
	cmd, err := performance(ctx, p)
	if err != nil {
		return nil, err
	}
	return start(p, cmd, partReady, func(line string) { d.show.event("%s: %s", p, line) })
}

// succeed starts the successor of a child that died, and notes that no process had the part from since
// until now.
func (d *director) succeed(ctx context.Context, p part, since, died time.Time) (*child, error) {
	c, err := d.begin(ctx, p)
	if err != nil {
		return nil, err
	}
	back := time.Now()
	d.show.event("%s replaced after %d ms", p, back.Sub(died).Milliseconds())
	return c, d.dbs.noteDeath(ctx, p.Name, since, back)
}

// strike kills a gateway in the middle of its e-mails: the mail server has received the recipients of
// some, and has accepted the text of others without an answer.
func (d *director) strike(ctx context.Context, gateway *child) (*child, error) {
	hold := d.mail.holdUp(gateway.part.host())
	defer hold.release()
	n, err := hold.await(ctx)
	if err != nil {
		return nil, err
	}
	gateway.kill()
	died := time.Now()
	hold.release()
	d.show.event("%s killed (SIGKILL) in the middle of %d e-mails", gateway.part, n)
	return d.succeed(ctx, gateway.part, died, died)
}

// freezeGateway freezes a gateway in the middle of its e-mails, until its time-outs for the mail
// server's answers are over.
func (d *director) freezeGateway(ctx context.Context, gateway *child) error {
	hold := d.mail.holdUp(gateway.part.host())
	defer hold.release()
	n, err := hold.await(ctx)
	if err != nil {
		return err
	}
	if err := gateway.freeze(); err != nil {
		return err
	}
	d.show.event("%s frozen for a second (SIGSTOP) in the middle of %d e-mails", gateway.part, n)
	hold.release()
	err = sleep(ctx, time.Second)
	gateway.wake()
	return err
}

// strikeVerifier freezes the verifier for a second, wakes it to its backlog, and kills it at the worst
// moment: messages have arrived at the target, and the verifier may not yet have deleted their rows
// and acked them.
func (d *director) strikeVerifier(ctx context.Context, verifier *child) (*child, error) {
	since := time.Now()
	d.show.event("%s frozen for a second (SIGSTOP)", verifier.part)
	if err := verifier.freeze(); err != nil {
		return nil, err
	}
	if err := sleep(ctx, time.Second); err != nil {
		return nil, err
	}
	before := len(d.copies.arrivals())
	verifier.wake()
	for began := time.Now(); time.Since(began) < time.Second && len(d.copies.arrivals()) == before; {
		if err := sleep(ctx, time.Millisecond); err != nil {
			return nil, err
		}
	}
	if err := sleep(ctx, 10*time.Millisecond); err != nil { // until more have arrived
		return nil, err
	}
	verifier.kill()
	d.show.event("%s killed (SIGKILL)", verifier.part)
	return d.succeed(ctx, verifier.part, since, time.Now())
}

// finish waits until every e-mail is sent or doubtful, ends the verifier, resolves the doubtful
// e-mails, and ends the gateways.
func (d *director) finish(ctx context.Context, posts []*child, verifier *child) error {
	d.show.event("the e-mails of a killed gateway become doubtful after %v", doubtAfter)
	err := d.await(ctx, func(c counts) bool { return c.Received+c.Doubtful >= c.Committed && c.Pending == c.Doubtful })
	if err != nil {
		return err
	}
	if err := d.empty(ctx, []*child{verifier}, d.unverified); err != nil {
		return err
	}
	if err := d.resolve(ctx); err != nil {
		return err
	}
	unsent := func(ctx context.Context) (int, error) { return d.depth(ctx, []string{d.Emails}) }
	if err := d.empty(ctx, posts, unsent); err != nil {
		return err
	}
	c, err := d.counts(ctx)
	d.show.progress(c)
	return err
}

// judging is how long a process may still hold messages after its queues are empty: a verifier that
// takes over drops nothing before another message is committed.
const judging = time.Second

// unverified returns the number of messages that wait for a verifier, in its queues and in rows of the
// ledger.
func (d *director) unverified(ctx context.Context) (int, error) {
	topology := d.topology()
	queued, err := d.depth(ctx, []string{topology.Queue, topology.WaitingQueue()})
	if err != nil {
		return 0, err
	}
	carried, err := d.dbs.carried(ctx)
	return queued + carried, err
}

// empty ends children once no work is left for them. The messages that an ended process still held are
// then in its queue again: empty starts another process for them, until none are left or patience ends.
func (d *director) empty(ctx context.Context, all []*child, left func(context.Context) (int, error)) error {
	deadline, filled := time.Now().Add(patience), time.Now()
	for {
		ready, err := left(ctx)
		if err != nil {
			return err
		}
		if ready > 0 {
			filled = time.Now()
		}
		if late := time.Now().After(deadline); time.Since(filled) > judging || late {
			for _, c := range all {
				if err := c.stop(); err != nil {
					return err
				}
			}
			if ready, err = left(ctx); err != nil || ready == 0 || late {
				return err
			}
			c, err := d.begin(ctx, all[0].part)
			if err != nil {
				return err
			}
			all = []*child{c}
		}
		if err := rest(ctx); err != nil {
			return err
		}
	}
}

// watch reads the progress from the databases and shows it, until ctx ends.
func (d *director) watch(ctx context.Context) {
	for {
		c, err := d.counts(ctx)
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

// await waits until the progress is as wanted. It also returns nil if there is no progress for
// patience: then the verdict reports the missing messages.
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

// rest waits for one glance.
func rest(ctx context.Context) error { return sleep(ctx, glance) }

// sleep waits for d. If ctx ends earlier it returns the cause.
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
