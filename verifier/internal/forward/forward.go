// Package forward publishes messages and reports the end of each. It knows targets and connections.
// It does not know ledgers, sessions, or the meaning of a message.
package forward

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/verifier/internal/pipe"
)

// A Forwarder publishes messages and reports which are safe: confirmed and not returned (rule 4 of
// package bridge). If a target does not take a message, the message waits in heldTargets and is
// published again.
//
// Most messages go over the main channel, without waiting for each other's confirms. A publish that
// the broker refuses (missing exchange, no right, refused property) closes the channel, and the
// fate of everything in flight there is unknown. All of it then goes over solo channels, one
// message at a time, which identifies the refused message. From then on, messages for its exchange
// also go over solo channels, until one of them succeeds.
//
// A target that does not confirm falls behind: messages published to others a while later are
// confirmed. Then it is held, before it delays others: after a burst of messages to a quorum queue
// that commits nothing, RabbitMQ reads nothing more from the connection (its credit flow). The
// other targets' messages go on over a new main channel, and messages that the broker has not read
// are published there again. Messages in flight on the old channel may still be confirmed; if their
// confirms do not come in time, they count as failed. If the whole main channel is silent for so
// long, the stuck target is unknown. Then everything in flight there goes over the solo channels.
//
// A channel without confirms is left together with its connection: a queue that does not answer
// blocks the broker's side of the channel, which then does not answer its closing either, and in
// the end blocks the connection's other channels too. So the main channel and each trial of a stuck
// target have a separate connection.
//
// Publishing connections have no delivery tags: if one is lost or cannot be opened, the session
// goes on. Messages wait then, and the forwarder connects again with backoff. The caller bounds how
// long they wait (RemoveUnsent, Abandon).
type Forwarder struct {
	connect func(context.Context) (*bridge.Connection, error)
	timeout time.Duration
	limit   int // most messages in flight on the main channel
	copies  int // most nacks of a message by an exchange
	log     *slog.Logger

	held   *heldTargets
	ended  func(*Publication, Result, error)
	moving pipe.Counter

	ready *pipe.Gatherer[*Publication] // to be published
	solo  *pipe.Gatherer[*Publication] // to be published alone
	stuck *pipe.Gatherer[*Publication] // the same, for targets that did not confirm: these wait only for each other

	closing sync.WaitGroup // connections that were left and have nothing in flight

	mu           sync.Mutex
	main         *mainChannel    // nil before the first one, and after one was left or lost
	leftChannels []*mainChannel  // channels that were left and still have publications in flight
	blocked      string          // the broker's reason for accepting nothing; "" if it accepts messages
	disconnected string          // why there is no connection for the main channel; "" if there is one
	suspects     map[string]bool // exchanges whose messages are published alone
}

// A Config has the arguments of New. All are required.
type Config struct {
	Connect        func(context.Context) (*bridge.Connection, error)
	InFlight       int           // most messages in flight on the main channel
	ConfirmTimeout time.Duration // after which an unconfirmed publication counts as failed
	Unroutable     time.Duration // how long a message is retried whose target is missing
	Copies         int           // most nacks of a message by an exchange
	HoldKeys       bool          // a message with an order key never goes to the dead queue
	Waiting        chan struct{} // woken when another publication waits for a held target
	Log            *slog.Logger
	Remembered     Remembered // of the last session
	// Ended takes over publications that have ended. It must not block. It may publish further ones.
	Ended func(p *Publication, result Result, err error)
}

// New returns a Forwarder without a connection. Publications wait in it until Run.
func New(c Config) *Forwarder {
	held, suspects := c.Remembered.recall(time.Now())
	return &Forwarder{
		connect: c.Connect, timeout: c.ConfirmTimeout, limit: c.InFlight, copies: c.Copies, log: c.Log,
		held:  &heldTargets{log: c.Log, unroutable: c.Unroutable, copies: c.Copies, holdKeys: c.HoldKeys, more: c.Waiting, targets: held},
		ended: c.Ended,
		ready: pipe.NewGatherer[*Publication](), solo: pipe.NewGatherer[*Publication](), stuck: pipe.NewGatherer[*Publication](),
		suspects: suspects,
	}
}

// Open connects and makes the first main channel, which outlives ctx. The caller must call Close
// afterwards.
func (f *Forwarder) Open(ctx context.Context) error {
	conn, err := f.connect(ctx)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, conn.Close)()
	if f.main, err = newMainChannel(context.WithoutCancel(ctx), conn, f.limit); err != nil {
		conn.Close()
	}
	return err
}

// maxLeft bounds the main channels that were left and may still deliver confirms.
const maxLeft = 8

// MostConnections is the largest number of connections of a Forwarder: one for the main channel,
// one for suspects, one for each trial of a stuck target, and one for each channel that was left.
const MostConnections = 1 + 1 + soloChannels + maxLeft

// Run publishes until ctx ends. Open must have succeeded.
func (f *Forwarder) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, f.main.leave)() // the first main channel is older than ctx
	group.Go(func() error { return f.runMain(ctx) })
	group.Go(func() error { return f.watchMain(ctx) })
	shared := &soloConnections{connect: f.connect, borrow: f.mainConnection}
	for range soloChannels {
		group.Go(func() error { return f.runSolo(ctx, f.solo, shared) })
		group.Go(func() error { return f.runSolo(ctx, f.stuck, &soloConnections{connect: f.connect}) })
	}
	return group.Wait()
}

// Publish queues a publication.
func (f *Forwarder) Publish(p *Publication) {
	f.moving.Add(1)
	if !f.enqueueIfHeld(p) {
		f.ready.Add(p)
	}
}

// Moving counts the publications in the Forwarder, except publications that wait for held targets. A
// publication that has ended counts until Ended has returned.
func (f *Forwarder) Moving() *pipe.Counter { return &f.moving }

// IsHeld reports whether a target is held.
func (f *Forwarder) IsHeld(to bridge.Target) bool { return f.held.has(to) }

// Hold holds a target as if it did not confirm. Tests call it.
func (f *Forwarder) Hold(to bridge.Target) { f.held.holdStuck(to) }

// Held lists the held targets.
func (f *Forwarder) Held() []Held { return f.held.list() }

// WaitingMessages returns the number of publications that wait for held targets, without ordered
// ones.
func (f *Forwarder) WaitingMessages() int { return f.held.size() }

// RemoveHeld removes and returns publications that wait for held targets, of each target the oldest
// first. The caller owns them then.
func (f *Forwarder) RemoveHeld(must func(*Publication) bool) []*Publication {
	return f.held.remove(must)
}

// Abandon removes and returns publications, wherever they are. A publication in flight may arrive
// nevertheless. A message that is being published alone stays, for ConfirmTimeout at most.
func (f *Forwarder) Abandon(must func(*Publication) bool) []*Publication {
	out := f.RemoveUnsent(must)
	f.mu.Lock()
	channels := slices.Clone(f.leftChannels)
	if f.main != nil {
		channels = append(channels, f.main)
	}
	f.mu.Unlock()
	for _, c := range channels {
		for _, p := range c.abandon(must) {
			f.held.noteEnd(p, false)
			f.moving.Add(-1)
			out = append(out, p)
		}
	}
	return append(out, f.held.remove(must)...)
}

// RemoveUnsent removes and returns publications that wait for a channel.
func (f *Forwarder) RemoveUnsent(must func(*Publication) bool) (out []*Publication) {
	for _, g := range []*pipe.Gatherer[*Publication]{f.ready, f.solo, f.stuck} {
		out = append(out, g.Remove(must)...)
	}
	for _, p := range out {
		f.held.noteEnd(p, false) // if it was a trial, the trial did not happen
	}
	f.moving.Add(-len(out))
	return out
}

// Retry retries held targets, and gives up messages that have been unroutable for too long.
func (f *Forwarder) Retry(now time.Time) {
	again, dead := f.held.takeDue(now)
	f.moving.Add(len(again) + len(dead))
	for _, p := range dead {
		f.end(p.Publication, Expired, errMissing(p.To, p.why))
	}
	if len(again) > 0 {
		f.ready.Add(again...)
	}
}

// enqueueIfHeld queues p at its target if the target is held, and reports whether it is. A
// publication for Once ends instead.
func (f *Forwarder) enqueueIfHeld(p *Publication) bool {
	switch {
	case !f.held.enqueueIfHeld(p):
		return false
	case p.Once:
		f.end(p, Skipped, nil)
	default:
		f.moving.Add(-1)
	}
	return true
}

// failed queues p at its target, which does not take it now.
func (f *Forwarder) failed(p *Publication, reason Reason, why problem) {
	if p.Once {
		f.log.Warn("no copy in the audit queue", "message_id", p.ID, "reason", why.text)
		f.end(p, Skipped, nil)
		return
	}
	if r := p.Retries; r != nil {
		r.Attempts++
		if reason == Full && p.To.Exchange != "" {
			r.Nacks, r.NackedAt = r.Nacks+1, time.Now()
			if r.Nacks >= int64(f.copies) {
				f.held.nackedOut(p, why)
				f.end(p, NackedOut, errNackedOut(p))
				return
			}
		}
	}
	f.held.enqueueFailed(p, reason, why)
	f.moving.Add(-1)
}

// end passes p to the next stage. p stays in moving until the next stage has counted it, so drain
// overlooks no message.
func (f *Forwarder) end(p *Publication, result Result, err error) {
	f.held.noteEnd(p, result == Placed)
	f.ended(p, result, err)
	f.moving.Add(-1)
}

func (f *Forwarder) runMain(ctx context.Context) error {
	wait := pipe.NewBackOff(firstReconnect, mostReconnect)
	for {
		select {
		case <-f.ready.More:
		case <-ctx.Done():
			return nil
		}
		if f.isDisconnected() { // even with nothing to publish, so that State reports the end of the outage
			if _, err := f.mainChannel(ctx); err != nil {
				f.reconnectLater(ctx, wait.NextBackOff(), err)
				continue
			}
		}
		for batch := f.ready.Take(f.limit); len(batch) > 0; batch = batch[1:] {
			p := batch[0]
			switch {
			case p.solo:
				p.solo = false
				f.stuck.Add(p)
				continue
			case f.isSuspect(p.To.Exchange):
				f.solo.Add(p)
				continue
			}
			err := f.publishMain(ctx, p)
			if err == nil {
				wait.Reset()
				continue
			}
			f.ready.Add(batch...) // there other goroutines can remove them
			f.reconnectLater(ctx, wait.NextBackOff(), err)
			break
		}
	}
}

// reconnectLater pauses before the next attempt to get a main channel.
func (f *Forwarder) reconnectLater(ctx context.Context, pauseFor time.Duration, err error) {
	if ctx.Err() != nil {
		return
	}
	f.setDisconnected(err)
	f.log.Warn("no connection to publish over", "error", err, "retry_in", pauseFor)
	f.giveUpOldest(time.Now()) // at a limit of connections, the oldest channel's may be one too many
	pipe.Pause(ctx, pauseFor)
	f.ready.Wake()
}

// publishMain publishes p over the main channel, unless its target is held by now. It waits only
// for room on the channel. The error says why there is no main channel.
func (f *Forwarder) publishMain(ctx context.Context, p *Publication) error {
	for {
		main, err := f.mainChannel(ctx)
		if err != nil {
			return err
		}
		// A target is held before its channel is left, so a publication that waited for room on the old
		// channel does not reach the new one.
		if f.enqueueIfHeld(p) {
			return nil
		}
		one := main.begin(p)
		err = main.publisher.Publish(main.taking, p.To, *p.Publishing, func(err error) {
			if main.confirmed(one, err) {
				f.reportMain(ctx, p, err)
			}
		})
		if err == nil {
			main.sent(one)
			return nil
		}
		if !main.withdraw(one) { // it was given up meanwhile, and another channel has it
			return nil
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, bridge.ErrInvalidMessage):
			f.end(p, Refused, err)
			return nil
		}
		// The main channel was closed, left or lost: take the next one.
	}
}

// reportMain handles the result of a publication on the main channel. It must not block.
func (f *Forwarder) reportMain(ctx context.Context, p *Publication, err error) {
	switch {
	case err == nil:
		f.end(p, Placed, nil)
	case errors.Is(err, bridge.ErrReturned):
		f.failed(p, Missing, unbound(p.To))
	case errors.Is(err, bridge.ErrNacked):
		f.failed(p, Full, fullQueue)
	case ctx.Err() == nil:
		f.solo.Add(p) // a suspect, or in flight when the connection was lost
	}
}

// mainChannel returns the main channel, or makes a new one if the last was closed, left or lost. It
// makes one attempt.
func (f *Forwarder) mainChannel(ctx context.Context) (*mainChannel, error) {
	f.mu.Lock()
	main := f.main
	var err error
	if main != nil {
		if err = main.publisher.Err(); err == nil {
			f.mu.Unlock()
			return main, nil
		}
		f.main = nil // the next channel reuses its connection
	}
	f.mu.Unlock()
	var conn *bridge.Connection
	if main != nil {
		if refusal := bridge.Refusal(err); refusal != nil {
			f.log.Warn("publishing channel closed; looking for the message that caused it",
				"code", refusal.Code, "reason", refusal.Reason)
		}
		main.leave()
		if lost := main.conn.Err(); lost != nil {
			f.log.Warn("publishing connection lost", "error", lost)
			f.closing.Go(main.conn.Close)
		} else {
			conn = main.conn // only the channel was lost
		}
	}
	if conn == nil {
		if conn, err = f.connect(ctx); err != nil {
			return nil, err
		}
	}
	next, err := newMainChannel(ctx, conn, f.limit)
	if err != nil {
		conn.Close()
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.main, f.disconnected = next, ""
	return next, nil
}

// mainConnection returns the main channel's connection, or nil.
func (f *Forwarder) mainConnection() *bridge.Connection {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.main == nil || f.main.conn.Err() != nil {
		return nil
	}
	return f.main.conn
}

// Awaits reports whether a confirm may still come on one of the main channels.
func (f *Forwarder) Awaits() bool {
	f.mu.Lock()
	all := append([]*mainChannel{f.main}, f.leftChannels...)
	f.mu.Unlock()
	for _, c := range all {
		if c != nil && c.conn.Err() == nil && c.publisher.Err() == nil && !c.empty() {
			return true
		}
	}
	return false
}

// Close ends the main channels' connections for good.
func (f *Forwarder) Close() {
	f.mu.Lock()
	all := f.leftChannels
	if f.main != nil {
		all = append(all, f.main)
	}
	f.mu.Unlock()
	for _, c := range all { // closing one that does not answer takes a while
		f.closing.Go(c.close)
	}
	f.closing.Wait()
}

// Remember returns the held targets and suspects, for the next session.
func (f *Forwarder) Remember(now time.Time) Remembered {
	r := Remembered{held: f.held.forNextSession(), at: now}
	f.mu.Lock()
	defer f.mu.Unlock()
	r.suspects = maps.Clone(f.suspects)
	return r
}

// watchMain checks the main channels periodically for targets that fall behind and for publications
// without a confirm in time.
func (f *Forwarder) watchMain(ctx context.Context) error {
	ticker := time.NewTicker(min(f.timeout, behindAfter) / 4)
	defer ticker.Stop()
	for {
		f.mu.Lock()
		main, left := f.main, slices.Clone(f.leftChannels)
		f.mu.Unlock()
		var lost <-chan struct{}
		if main != nil {
			lost = main.conn.Done()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-lost:
			f.leaveLost(main)
		case now := <-ticker.C:
			if main != nil {
				f.reportBlocked(main.conn.Blocked())
				f.holdBehind(main, now)
			}
			for _, c := range left {
				f.clearLeft(c, now)
			}
		}
	}
}

// leaveLost leaves a main channel whose connection was lost. The messages in flight on it are reported
// as unconfirmed.
func (f *Forwarder) leaveLost(main *mainChannel) {
	f.mu.Lock()
	if f.main != main { // mainChannel has noticed the loss too
		f.mu.Unlock()
		return
	}
	f.main = nil
	f.mu.Unlock()
	f.log.Warn("publishing connection lost", "error", main.conn.Err())
	f.closing.Go(main.close)
}

// setDisconnected stores why there is no main channel.
func (f *Forwarder) setDisconnected(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.disconnected = err.Error()
}

func (f *Forwarder) isDisconnected() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.disconnected != ""
}

// reportBlocked logs when the broker stops accepting messages, and when it accepts them again.
func (f *Forwarder) reportBlocked(reason string) {
	f.mu.Lock()
	before := f.blocked
	f.blocked = reason
	f.mu.Unlock()
	switch {
	case before == "" && reason != "":
		f.log.Warn("the broker accepts no messages", "reason", reason)
	case before != "" && reason == "":
		f.log.Info("the broker accepts messages again")
	}
}

// Blocked returns why nothing can be published, or "".
func (f *Forwarder) Blocked() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return cmp.Or(f.blocked, f.disconnected)
}

// holdBehind holds the targets that have fallen behind on the main channel. If there are any, it leaves
// the channel.
func (f *Forwarder) holdBehind(main *mainChannel, now time.Time) {
	if main.conn.Blocked() != "" { // no target is the cause
		main.restartTimes(now)
		return
	}
	behind, overdue, silent := main.check(now, f.timeout)
	leave := overdue || silent
	for _, to := range behind {
		leave = f.held.holdStuck(to) || leave
	}
	if !leave {
		return
	}
	f.mu.Lock()
	if f.main != main { // it has closed, and the next one has its connection
		f.mu.Unlock()
		return
	}
	f.main = nil
	f.leftChannels = append(f.leftChannels, main)
	tooMany := len(f.leftChannels) > maxLeft
	f.mu.Unlock()
	if silent {
		f.log.Warn("no confirm for too long; looking for the target that is stuck", "waited", f.timeout)
	}
	main.leave()
	f.clearLeft(main, now)
	if tooMany {
		f.giveUpOldest(now)
	}
}

// giveUpOldest gives up all publications in flight on the channel that was left first, and closes
// it.
func (f *Forwarder) giveUpOldest(now time.Time) {
	f.mu.Lock()
	var oldest *mainChannel
	if len(f.leftChannels) > 0 {
		oldest = f.leftChannels[0]
	}
	f.mu.Unlock()
	if oldest == nil {
		return
	}
	for _, p := range oldest.giveUp(now, f.timeout, true) {
		f.failed(p, Stuck, noConfirm)
	}
	f.clearLeft(oldest, now)
}

// clearLeft gives up publications that are in flight for too long on a channel that was left, and
// closes the channel when none are.
func (f *Forwarder) clearLeft(c *mainChannel, now time.Time) {
	if c.conn.Err() == nil && c.conn.Blocked() != "" {
		c.restartTimes(now)
		return
	}
	if again := c.unread(now); len(again) > 0 {
		f.ready.Add(again...)
	}
	_, _, silent := c.check(now, f.timeout)
	for _, p := range c.giveUp(now, f.timeout, silent) {
		if silent {
			f.solo.Add(p)
		} else {
			f.failed(p, Stuck, noConfirm)
		}
	}
	if !c.empty() {
		return
	}
	f.mu.Lock()
	f.leftChannels = slices.DeleteFunc(f.leftChannels, func(other *mainChannel) bool { return other == c })
	f.mu.Unlock()
	f.closing.Go(c.close) // closing may take a while
}
