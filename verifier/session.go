package verifier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/proof"
	"github.com/twoqueue/twoqueue/verifier/internal/consume"
	"github.com/twoqueue/twoqueue/verifier/internal/forward"
	"github.com/twoqueue/twoqueue/verifier/internal/pipe"
)

// A session is the pipeline of the package comment, on one pair of connections:
//
//	take -> look ---------------> forwarder
//	          \-> room -> settle -/     \-> forget -> ack
//
// Before forwarder a message of an ordered queue waits for its turn (consume.Place).
//
// A message has one owner at a time. The owner passes it on and then does not touch it again. While
// a message waits in the room or for a held target, setAsideExcess may remove it and set it aside.
//
// A session does not outlive its connections: on any error the whole session ends, every unacked
// message is redelivered, and a new session is started.
type session struct {
	ledger driver.Ledger
	proven *proof.Proven // gives all outcomes, of the same ledger
	broker *bridge.Broker
	opts   Options
	allow  allowList
	stats  *counters
	jobs   sideJobs
	calls  sideCalls // the verifier's
	log    *slog.Logger

	consuming *bridge.Connection // separate, so that an alarm that blocks publishing does not block acks
	staging   *consume.Consumer
	waiting   *consume.Consumer
	shards    []*consume.Ordered

	load        loadMeter
	arrivals    *pipe.Gatherer[*message]
	carried     *carriedSet              // nil if no row of the ledger carries a message
	toucher     *toucher                 // the verifier's
	stager      *stager                  // nil if no row of the ledger carries a message
	toTouch     *pipe.Gatherer[*message] // messages to set aside after a Touch
	touching    pipe.Counter             // messages in toTouch, or being touched
	finished    atomic.Bool              // at the end all messages were acked or handed back
	room        *waitingRoom
	evidence    *evidence
	stay        stayTime
	more        chan struct{} // woken when another message waits in the room or for a held target
	forwarder   *forward.Forwarder
	connections *connections // the verifier's
	forgetter   *forgetter   // the verifier's
	toForget    *pipe.Gatherer[*message]
	forgetting  pipe.Counter // messages in toForget, or whose rows are being deleted
	settling    atomic.Int64 // lookups that wait in the database
}

// open connects and declares the queues. The proof has succeeded before.
func (v *Verifier) open(ctx context.Context, proven *proof.Proven) (_ *session, err error) {
	s := &session{
		ledger:      v.ledger,
		proven:      proven,
		broker:      v.broker,
		opts:        v.opts,
		allow:       v.allow,
		stats:       &v.stats,
		jobs:        v.jobs,
		calls:       v.calls,
		log:         v.opts.Logger,
		arrivals:    pipe.NewGatherer[*message](),
		toucher:     v.toucher,
		toTouch:     pipe.NewGatherer[*message](),
		room:        newWaitingRoom(v.opts.Settlers),
		evidence:    &evidence{began: time.Now()},
		connections: v.connections,
		forgetter:   v.forgetter,
		toForget:    pipe.NewGatherer[*message](),
		more:        make(chan struct{}, 1),
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	missing := v.missingQueues(ctx)
	if err := v.opts.Topology.Declare(ctx, v.broker); err != nil {
		return nil, err
	}
	for _, queue := range missing {
		s.log.Info("queue did not exist; created", "queue", queue)
	}
	if s.consuming, err = v.broker.Connect(ctx); err != nil {
		return nil, err
	}
	// The AMQP library's channels take no context.
	defer context.AfterFunc(ctx, s.consuming.Close)()
	claimed := &claim{s.consuming, s.opts.Topology, s.ledger.Identity()}
	if err := claimed.begin(v.unclaimed); err != nil {
		return nil, err
	}
	bytes := s.opts.shares()
	config := consume.Config{Queue: s.opts.Topology.Queue, Prefetch: s.opts.Prefetch, MaxBytes: bytes.staging, HandBack: s.opts.HandBack, Arrive: s.arrive}
	if s.staging, err = consume.Open(s.consuming, config); err != nil {
		return nil, err
	}
	config.Queue, config.Prefetch, config.MaxBytes = s.opts.Topology.WaitingQueue(), s.opts.waitingPrefetch(), bytes.waiting
	if s.waiting, err = consume.Open(s.consuming, config); err != nil {
		return nil, err
	}
	for _, queue := range s.opts.Topology.OrderedQueues() {
		config.Queue, config.Prefetch, config.MaxBytes = queue, consume.OrderedPrefetch, bytes.ordered
		shard, err := consume.OpenOrdered(s.consuming, consume.OrderedConfig{
			Config: config, FinishWait: s.opts.ConfirmTimeout + time.Second, Log: s.log,
			IsHeld: func(m any) bool { return s.forwarder.IsHeld(m.(*message).staged.Target()) },
		})
		if err != nil {
			return nil, err
		}
		s.shards = append(s.shards, shard)
	}
	if s.ledger.Features().Carries {
		s.carried = newCarriedSet(s.opts.Prefetch, bytes.staging)
	}
	s.forwarder = forward.New(forward.Config{
		Connect:        v.broker.Connect,
		InFlight:       s.opts.Prefetch,
		ConfirmTimeout: s.opts.ConfirmTimeout,
		Unroutable:     s.opts.Unroutable,
		Copies:         s.opts.Copies,
		Waiting:        s.more,
		Log:            s.log,
		Remembered:     v.remembered,
		Ended: func(p *forward.Publication, what forward.Fate, err error) {
			s.publicationEnded(publicationOf(p), what, err)
		},
	})
	if err := s.forwarder.Open(ctx); err != nil {
		return nil, err
	}
	if s.carried != nil {
		s.stager = newStager(s, s.calls.stage)
	}
	return s, nil
}

// missingQueues returns the queues that do not exist yet, as far as the login has the right and the
// broker answers. The log names them, because a mistyped name makes new queues.
func (v *Verifier) missingQueues(ctx context.Context) (missing []string) {
	conn, err := v.broker.Connect(ctx)
	if err != nil {
		return nil
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, conn.Close)()
	for _, queue := range v.opts.Topology.Queues() {
		ch, err := conn.Channel()
		if err != nil {
			return missing
		}
		_, err = ch.QueueDeclarePassive(queue.Name, true, false, false, false, nil)
		if refusal := bridge.Refusal(err); refusal != nil && refusal.Code == amqp.NotFound {
			missing = append(missing, queue.Name)
		}
		_ = ch.Close()
	}
	return missing
}

func (s *session) close() {
	if s.consuming != nil {
		closed := make(chan struct{})
		var rest sync.WaitGroup
		for _, c := range s.consumers() {
			if c != nil {
				rest.Go(func() { c.Discard(closed) })
			}
		}
		s.consuming.Close()
		close(closed)
		rest.Wait()
	}
	if s.forwarder != nil {
		s.forwarder.Close()
	}
}

// run works until ctx ends or something fails. When ctx ends it takes and judges no further
// messages, but finishes the judged ones, for at most Options.Drain. All others are unacked and so
// handed back.
func (s *session) run(ctx context.Context) error {
	var beside sync.WaitGroup // the side jobs
	defer beside.Wait()
	defer s.close()
	// Any failure ends all stages. The end of ctx ends only the stages that take new work; the others
	// run until they are drained.
	group, failing := errgroup.WithContext(context.WithoutCancel(ctx))
	// If a stage fails, safe messages are acked and the rest is handed back, even while another stage
	// waits.
	ended, opened := make(chan struct{}), make(chan struct{})
	stopEnd := context.AfterFunc(failing, func() {
		defer close(ended)
		if s.finished.Load() {
			return
		}
		select {
		case <-opened: // the last acks make requests on the channels, one at a time
			s.ackAndClose()
		case <-time.After(lastMoment): // the broker does not answer
			s.consuming.Close()
		}
	})
	defer func() {
		if !stopEnd() {
			<-ended
		}
	}()
	moving, stop := context.WithCancel(failing)
	defer stop()
	taking, stopTaking := context.WithCancel(moving)
	defer context.AfterFunc(ctx, stopTaking)()

	for _, c := range []*consume.Consumer{s.staging, s.waiting} {
		if err := c.Consume(); err != nil {
			close(opened)
			group.Go(func() error { return err })
			return group.Wait()
		}
		group.Go(func() error { return c.Take(moving) }) // at once: the broker's answer to the next consume arrives behind the deliveries
	}
	close(opened)
	takers, takerCtx := newStages(taking)
	for _, c := range []*consume.Consumer{s.staging, s.waiting} {
		takers.Go(func() error { return c.Unpack(takerCtx) })
		takers.Go(func() error { return c.HandBackResting(takerCtx) })
	}
	for _, sh := range s.shards {
		group.Go(func() error { return sh.Serve(moving, takerCtx) })
		takers.Go(func() error { return sh.Wait(moving) })
	}
	takers.Go(func() error { return s.look(takerCtx) })
	for range s.opts.Settlers {
		takers.Go(func() error { return s.settle(takerCtx) })
	}
	takers.Go(func() error { return s.tend(takerCtx) })

	beside.Go(func() { s.retryForget(moving) })
	beside.Go(func() { s.touchHeld(moving) })
	beside.Go(func() { s.stageAgain(taking) })
	beside.Go(func() { s.sweep(taking) })
	beside.Go(func() { s.explain(taking) })

	group.Go(func() error { return takers.watch(moving) })
	group.Go(func() error { return s.watch(moving, ctx.Done()) })
	group.Go(func() error { return s.forwarder.Run(moving) })
	group.Go(func() error { return s.touchFirst(moving) })
	group.Go(func() error { return s.forget(moving) })
	group.Go(func() error { return s.staging.RunAcks(moving) })
	group.Go(func() error { return s.waiting.RunAcks(moving) })
	group.Go(func() error {
		defer stop()
		if err := takers.group.Wait(); err != nil {
			return err
		}
		return s.drain(moving)
	})
	return group.Wait()
}

// lastAcks is how long the broker may take for the acks at the end, after Options.Drain.
const lastAcks = 5 * time.Second

// watch ends the session when the consuming connection is lost, or when the drain takes too long.
func (s *session) watch(ctx context.Context, ending <-chan struct{}) error {
	var late <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.consuming.Done():
			return fmt.Errorf("consuming connection lost: %w", s.consuming.Err())
		case <-ending:
			ending, late = nil, time.After(s.opts.Drain+lastAcks)
		case <-late:
			return fmt.Errorf("drain did not finish within %v", s.opts.Drain+lastAcks)
		}
	}
}

// drain waits until all judged messages are done, acks them, and hands back the rest.
func (s *session) drain(ctx context.Context) error {
	late := time.After(s.opts.Drain)
	counted := []*pipe.Counter{&s.touching, s.forwarder.Moving(), &s.forgetting} // no message goes back to an earlier one
	for {
		for _, stage := range counted {
			select {
			case <-stage.Zero():
			case <-ctx.Done():
				return nil
			case <-late:
				left := 0
				for _, stage := range counted {
					left += stage.Value()
				}
				return errors.Join(fmt.Errorf("%d messages not finished within %v", left, s.opts.Drain), s.finish())
			}
		}
		if s.reunite() == 0 {
			return s.finish()
		}
	}
}

// finish hands messages back once. Messages that come again before the channels end go back at that
// end: each return counts towards a delivery limit.
func (s *session) finish() error {
	var errs []error
	for _, c := range s.consumers() {
		errs = append(errs, c.Finish())
	}
	err := errors.Join(errs...)
	s.finished.Store(err == nil)
	return err
}

// consumers returns the present consumers.
func (s *session) consumers() []*consume.Consumer {
	consumers := []*consume.Consumer{s.staging, s.waiting}
	for _, sh := range s.shards {
		consumers = append(consumers, sh.Consumer())
	}
	return consumers
}

// reunite sets aside the waiting members of a group if another member is in another queue already:
// the group will be handed back whole, and that member would be in both queues. No other goroutine
// may be judging any more. Messages of an ordered queue keep their place nevertheless, and a dead
// letter then comes twice.
func (s *session) reunite() int {
	apart := func(m *message) bool { return !m.place.Ordered() && m.unacked.Apart.Load() }
	s.room.enter(false, s.arrivals.Take(math.MaxInt)...)
	waiting := append(s.room.removeMessages(apart), messagesOf(s.forwarder.RemoveHeld(forwards(apart)))...)
	waiting = append(waiting, s.carried.part(apart)...)
	s.setAside(waiting...)
	return len(waiting)
}
