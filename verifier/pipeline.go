package verifier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/twoqueue/twoqueue/bridge"
)

// errConsumerEnded: the broker has ended a consumer: the queue was deleted, its
// leader has moved, or a message was held for too long.
var errConsumerEnded = fmt.Errorf("%w: consumer ended by the broker", bridge.ErrUnavailable)

// A session is the pipeline (DESIGN section 7) on one pair of connections:
//
//	take -> look ---------------> publish -> forget -> ack
//	          \-> room -> settle -/   \-> holds -/
//
// Nothing of it outlives the connections: on any error the session is thrown
// away whole, everything unacked is redelivered, and a new one is started.
type session struct {
	ledger bridge.Ledger
	broker *bridge.Broker
	opts   Options
	allow  allowList
	stats  *counters
	log    *slog.Logger

	consuming *bridge.Connection // alone, so that an alarm that blocks publishing does not block acks
	staging   *lane
	waiting   *lane

	arrived   pace
	arrivals  *gatherer[*message]
	room      *waitingRoom
	holds     *holds
	forwarder *forwarder
	forgotten *gatherer[*message]
	crowded   chan struct{} // more wait than may
	moving    counter       // messages between a verdict and their ack
	settling  atomic.Int64  // lookups that wait in the database
}

// open connects and declares; the proof has been given.
func (v *Verifier) open(ctx context.Context) (_ *session, err error) {
	s := &session{
		ledger:    v.ledger,
		broker:    v.broker,
		opts:      v.opts,
		allow:     v.allow,
		stats:     &v.stats,
		log:       v.opts.Logger,
		arrivals:  newGatherer[*message](),
		room:      newWaitingRoom(v.opts.Settlers),
		forgotten: newGatherer[*message](),
		crowded:   make(chan struct{}, 1),
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := v.opts.Topology.Declare(ctx, v.broker); err != nil {
		return nil, err
	}
	if s.consuming, err = v.broker.Connect(ctx); err != nil {
		return nil, err
	}
	if s.staging, err = s.openLane(s.opts.Topology.Queue, s.opts.Prefetch); err != nil {
		return nil, err
	}
	if s.waiting, err = s.openLane(s.opts.Topology.WaitingQueue(), s.opts.WaitingPrefetch); err != nil {
		return nil, err
	}
	s.holds = &holds{
		log:        s.log,
		unroutable: s.opts.Unroutable,
		publish:    func(messages ...*message) { s.moving.add(len(messages)); s.forwarder.publish(messages...) },
		expired:    func(m *message) { s.deadLetter(m, deathReason{reasonUnroutable, m.to.String() + " does not exist"}) },
		targets:    make(map[bridge.Target]*hold),
	}
	publishing, err := v.broker.Connect(ctx)
	if err != nil {
		return nil, err
	}
	s.forwarder = &forwarder{
		connect:  v.broker.Connect,
		conn:     publishing,
		timeout:  s.opts.ConfirmTimeout,
		limit:    s.opts.Prefetch,
		log:      s.log,
		ready:    newGatherer[*message](),
		careful:  newGatherer[*message](),
		suspects: make(map[string]bool),
		on: forwardEvents{
			safe:    s.safe,
			failed:  s.hold,
			refused: s.refused,
			unfit:   s.unfit,
			held:    s.held,
		},
	}
	return s, nil
}

func (s *session) openLane(queue string, prefetch int) (*lane, error) {
	ch, err := s.consuming.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return nil, fmt.Errorf("set prefetch: %w", err)
	}
	return newLane(queue, prefetch, ch), nil
}

func (s *session) close() {
	if s.consuming != nil {
		s.consuming.Close()
	}
	if s.forwarder != nil {
		s.forwarder.close()
	}
}

// run works until ctx ends or something fails. When ctx ends it takes and judges
// nothing more, but brings to its end what has been judged, for at most
// Options.Drain. What is left is unacked and so handed back.
func (s *session) run(ctx context.Context) error {
	defer s.close()
	// Whatever fails ends all stages. The end of ctx ends only those that take
	// new work; the others run on until they are drained.
	group, moving := errgroup.WithContext(context.WithoutCancel(ctx))
	moving, stop := context.WithCancel(moving)
	defer stop()
	taking, stopTaking := context.WithCancel(moving)
	defer context.AfterFunc(ctx, stopTaking)()

	takers, takerCtx := errgroup.WithContext(taking)
	takers.Go(func() error { return s.take(takerCtx, s.staging) })
	takers.Go(func() error { return s.take(takerCtx, s.waiting) })
	takers.Go(func() error { return s.look(takerCtx) })
	for range s.opts.Settlers {
		takers.Go(func() error { return s.settle(takerCtx) })
	}
	takers.Go(func() error { return s.tend(takerCtx) })
	takers.Go(func() error { return s.explain(takerCtx) })
	takers.Go(func() error { return s.unpark(takerCtx) })
	takers.Go(func() error { return s.sweep(takerCtx) })

	group.Go(func() error { return s.watch(moving) })
	group.Go(func() error { return s.forwarder.run(moving) })
	group.Go(func() error { return s.forget(moving) })
	group.Go(func() error { return s.staging.acks.run(moving) })
	group.Go(func() error { return s.waiting.acks.run(moving) })
	group.Go(func() error {
		defer stop()
		if err := takers.Wait(); err != nil {
			return err
		}
		return s.drain(moving)
	})
	return group.Wait()
}

// take reads one consumer's deliveries.
func (s *session) take(ctx context.Context, l *lane) error {
	cancels := l.ch.NotifyCancel(make(chan string, 1))
	const autoAck, exclusive, noLocal, noWait = false, false, false, false
	deliveries, err := l.ch.Consume(l.queue, "", autoAck, exclusive, noLocal, noWait, nil)
	if err != nil {
		return fmt.Errorf("consume %q: %w", l.queue, err)
	}
	for {
		select {
		case <-ctx.Done():
			// No basic.cancel: RabbitMQ 3.10 ignores some of the acks that reach a
			// quorum queue after it (measured). The channel's end cancels too.
			return nil
		case <-cancels:
			return fmt.Errorf("consume %q: %w", l.queue, errConsumerEnded)
		case d, ok := <-deliveries:
			if !ok {
				return fmt.Errorf("consume %q: %w", l.queue, errConsumerEnded)
			}
			s.arrive(&parcel{lane: l, tag: d.DeliveryTag}, d)
		}
		if !l.waitRoom(ctx) {
			return nil
		}
	}
}

// arrive takes a delivery apart.
func (s *session) arrive(p *parcel, d amqp.Delivery) {
	now := time.Now()
	members, err := bridge.Members(d)
	if err != nil {
		p.lane.took(p, 1)
		s.deadLetter(&message{parcel: p, delivery: d, received: now}, deathReason{reasonMalformed, err.Error()})
		return
	}
	p.lane.took(p, len(members))
	for _, member := range members {
		s.parse(&message{parcel: p, delivery: member, received: now})
	}
}

// parse reads a message. What cannot be judged here goes to the dead queue.
func (s *session) parse(m *message) {
	staged, err := bridge.Parse(m.delivery)
	if err != nil {
		s.deadLetter(m, deathReason{reasonMalformed, err.Error()})
		return
	}
	m.staged = staged
	if since, ok := m.delivery.Headers[bridge.HeaderUnroutableSince].(int64); ok {
		m.unroutableSince = time.UnixMilli(since)
	}
	m.attempts, _ = m.delivery.Headers[bridge.HeaderAttempts].(int64)
	if staged.Ledger != s.ledger.Identity() {
		s.deadLetter(m, deathReason{reasonForeign, "ledger " + staged.Ledger.String() +
			"; this verifier judges " + s.ledger.Identity().String()})
		return
	}
	s.arrived.add(1)
	s.arrivals.add(m)
}

// committed sends messages on whose transaction has committed.
func (s *session) committed(messages ...*message) {
	now := time.Now()
	for _, m := range messages {
		m.committed, m.judged = true, now
		if !s.allow.permits(m.staged) {
			s.deadLetter(m, deathReason{reasonNotAllowed, m.staged.Target().String() + " is not on the allow-list"})
			continue
		}
		m.forward(s.opts.KeepUserID)
		s.publish(m)
	}
}

// drop ends a message whose transaction has rolled back; a copy of it may be kept.
func (s *session) drop(m *message) {
	m.judged = time.Now()
	if s.opts.Topology.Audit > 0 {
		m.audit(s.opts.Topology.AuditQueue(), m.judged)
		s.publish(m)
		return
	}
	s.moving.add(1)
	s.dropped(m)
}

func (s *session) dropped(m *message) {
	m.verdict = Dropped
	s.stats.dropped.Add(1)
	s.log.Debug("dropped", "message_id", m.id(), "outcome", bridge.RolledBack.String())
	s.done(m)
}

// deadLetter sends a message to the dead queue.
func (s *session) deadLetter(m *message, why deathReason) {
	m.deadLetter(s.opts.Topology.DeadQueue(), why, time.Now())
	s.publish(m)
}

// publish starts a message on its course, unless its target is held.
func (s *session) publish(m *message) {
	if s.holds.takes(m) {
		s.crowd()
		return
	}
	s.moving.add(1)
	s.forwarder.publish(m)
}

// safe: the broker has the message where its course led.
func (s *session) safe(m *message) {
	s.holds.ended(m)
	m.safe = time.Now()
	switch m.course {
	case forward:
		m.verdict = Forwarded
		s.stats.forwarded.Add(1)
	case deadLetter:
		s.dead(m)
	case setAside: // the copy in the waiting queue will be judged
		m.verdict = SetAside
		s.stats.setAside.Add(1)
		s.done(m)
		return
	case audit:
		s.dropped(m)
		return
	}
	if m.committed {
		s.forgotten.add(m)
	} else {
		s.done(m)
	}
}

// hold: the target does not take the message now.
func (s *session) hold(m *message, reason HoldReason) {
	if m.course == audit { // a copy for the curious holds up nothing
		s.log.Warn("no copy in the audit queue", "message_id", m.id(), "reason", reason.String())
		s.dropped(m)
		return
	}
	m.attempts++
	s.holds.failed(m, reason)
	s.moving.add(-1)
	s.crowd()
}

// held keeps a message that is about to be published if its target is held.
func (s *session) held(m *message) bool {
	if !s.holds.takes(m) {
		return false
	}
	s.moving.add(-1)
	s.crowd()
	return true
}

// refused: the broker will never take the message at its target.
func (s *session) refused(m *message, refusal *amqp.Error) {
	if m.course != forward { // our own queues: somebody must mend the rights
		s.hold(m, Full)
		return
	}
	s.holds.ended(m)
	s.deadLetter(m, deathReason{reasonRefused, fmt.Sprintf("%s: %d %s", m.to, refusal.Code, refusal.Reason)})
	s.moving.add(-1)
}

// unfit: the message cannot be sent over AMQP as it is. With the dead queue's
// headers it may have grown too large; then the broker moves it, unchanged. (A
// member of a group cannot: its properties leave room for those headers.)
func (s *session) unfit(m *message, err error) {
	s.holds.ended(m)
	if m.course == forward {
		s.deadLetter(m, deathReason{reasonRefused, err.Error()})
		s.moving.add(-1)
		return
	}
	if m.course == audit {
		s.dropped(m)
		return
	}
	if err := m.parcel.reject(); err != nil {
		s.log.Error("could not reject", "message_id", m.id(), "error", err)
	} else {
		s.dead(m)
		s.tell(m)
	}
	s.moving.add(-1)
}

func (s *session) dead(m *message) {
	m.verdict = DeadLettered
	s.stats.deadLettered.Add(1)
	s.log.Warn("dead-lettered", "message_id", m.id(), "reason", m.why.code, "text", m.why.text)
}

// done lets messages be acked.
func (s *session) done(messages ...*message) {
	s.tell(messages...)
	for _, l := range []*lane{s.staging, s.waiting} {
		var tags []uint64
		n := 0
		for _, m := range messages {
			if m.parcel.lane != l {
				continue
			}
			n++
			if m.parcel.open.Add(-1) == 0 {
				tags = append(tags, m.parcel.tag)
			}
		}
		l.done(n, tags)
	}
	s.moving.add(-len(messages))
}

// crowd has tend look at once whether more messages wait than may.
func (s *session) crowd() {
	if s.room.size()+s.holds.size() > s.opts.Waiting {
		wake(s.crowded)
	}
}

// tend looks after those who wait: it tries held targets again, and sets aside
// whoever has waited for too long or is one too many.
func (s *session) tend(ctx context.Context) error {
	const interval = 50 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.crowded:
		case now := <-ticker.C:
			s.holds.tick(now)
		}
		s.thin(time.Now())
	}
}

// thin sets aside whoever has waited for too long, and the oldest of those from
// the staging queue that exceed Options.Waiting; so the room always has space for
// new ones, and a slow transaction delays its own messages only.
func (s *session) thin(now time.Time) {
	excess := s.room.size() + s.holds.size() - s.opts.Waiting - int(s.waiting.held.Load())
	must := func(m *message) bool {
		if excess > 0 && m.course == forward && m.parcel.lane == s.staging {
			excess--
			return true
		}
		return s.overstays(m, now)
	}
	s.setAside(append(s.room.leave(must), s.holds.leave(must)...)...)
}

// overstays tells whether a message has waited for long enough: one from the
// staging queue for Options.Patience; one from the waiting queue for a turn, if
// others may be waiting behind it, else until the broker would lose patience.
func (s *session) overstays(m *message, now time.Time) bool {
	const turn = time.Second
	age := now.Sub(m.received)
	switch {
	case m.course != forward: // on its way to one of our own queues
		return false
	case m.parcel.lane == s.staging:
		return age >= min(s.opts.Patience, s.opts.HandBack)
	case int(s.waiting.held.Load()) >= s.waiting.prefetch:
		return age >= min(turn, s.opts.HandBack)
	default:
		return age >= s.opts.HandBack
	}
}

// setAside moves messages to the waiting queue.
func (s *session) setAside(messages ...*message) {
	for _, m := range messages {
		m.setAside(s.opts.Topology.WaitingQueue())
		s.publish(m)
	}
}

// watch ends the session when a connection is over.
func (s *session) watch(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.consuming.Done():
		return fmt.Errorf("consuming connection lost: %w", s.consuming.Err())
	}
}

// drain waits until everything that was judged is done, acks it, and hands back
// the rest.
func (s *session) drain(ctx context.Context) error {
	select {
	case <-s.moving.zero():
	case <-ctx.Done():
		return nil
	case <-time.After(s.opts.Drain):
		s.log.Warn("not drained in time; the rest is handed back", "messages", s.moving.value())
	}
	return errors.Join(s.staging.acks.finish(), s.waiting.acks.finish())
}
