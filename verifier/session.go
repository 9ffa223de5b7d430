package verifier

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/verifier/internal/consume"
	"github.com/twoqueue/twoqueue/verifier/internal/pipe"
)

// A session works through the steps of the package comment, on one pair of connections:
//
//	unpack -> look up -------------> forward -> forget -> ack
//	                 \-> settle -/
//
// Before it is forwarded, a message of an ordered queue waits for its turn (consume.Place).
//
// The session starts, drains and closes the parts. The judge looks up and settles. The pipeline does
// the rest, from the delivery to the ack. The limits set messages aside that wait for too long. Each
// part calls only the ones below it: judge, limits, pipeline.
//
// A message has one owner at a time. The owner passes it on and then does not touch it again. While
// a message waits in the room or for a held target, setAsideExcess may remove it and set it aside.
//
// A session does not outlive its connections: on any error the whole session ends, every unacked
// message is redelivered, and a new session is started.
type session struct {
	judge  *judge
	limits *waitLimits
	*pipeline
	room     *waitingRoom
	evidence *evidence

	consuming *bridge.Connection // separate, so that an alarm that blocks publishing does not block acks
	shards    []*consume.OrderedQueue
	finished  atomic.Bool // all messages were acked or handed back at the end
}

// run works until ctx ends or something fails. When ctx ends it takes and judges no further
// messages, but finishes the judged ones, for at most Options.Drain. All others are unacked and so
// handed back.
func (s *session) run(ctx context.Context) error {
	var sideJobs sync.WaitGroup
	defer sideJobs.Wait()
	defer s.close()
	// The first failure ends everything. The end of ctx ends only the loops that take new work; the
	// others run until they are drained.
	group, failing := errgroup.WithContext(context.WithoutCancel(ctx))
	consumed := make(chan struct{})
	defer s.ackOnFailure(failing, consumed)()
	moving, stop := context.WithCancel(failing)
	defer stop()
	taking, stopTaking := context.WithCancel(moving)
	defer context.AfterFunc(ctx, stopTaking)()

	group.Go(func() error { return s.watch(moving, ctx.Done()) })
	for _, c := range []*consume.Consumer{s.staging, s.waiting} {
		if err := c.Consume(); err != nil {
			close(consumed)
			group.Go(func() error { return err })
			if first := group.Wait(); first != err { // watch may notice the lost connection sooner
				return errors.Join(err, first)
			}
			return err
		}
		group.Go(func() error { return c.Take(moving) }) // at once: the broker's answer to the next consume arrives behind the deliveries
	}
	close(consumed)
	takers, takerCtx := newTakers(taking)
	for _, c := range []*consume.Consumer{s.staging, s.waiting} {
		takers.Go(func() error { return c.Unpack(takerCtx) })
		takers.Go(func() error { return c.HandBackResting(takerCtx) })
	}
	for _, shard := range s.shards {
		group.Go(func() error { return shard.Serve(moving, takerCtx) })
		takers.Go(func() error { return shard.WaitUnpacked(moving) })
	}
	takers.Go(func() error { return ofDatabase(s.judge.lookUpAll(takerCtx)) })
	for range s.opts.Settlers {
		takers.Go(func() error { return ofDatabase(s.judge.settleAll(takerCtx)) })
	}
	takers.Go(func() error { return s.limits.tend(takerCtx) })

	sideJobs.Go(func() { s.retryForget(moving) })
	sideJobs.Go(func() { s.touchHeld(moving) })
	sideJobs.Go(func() { s.stageAgain(taking) })
	sideJobs.Go(func() { s.sweep(taking) })
	sideJobs.Go(func() { s.explain(taking) })

	group.Go(func() error { return takers.watch(moving) })
	group.Go(func() error { return s.forwarder.Run(moving) })
	group.Go(func() error { return s.touchAndSetAside(moving) })
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

// retryForget, a side job, deletes the remaining rows of delivered messages.
func (s *session) retryForget(ctx context.Context) { s.jobs.forget.Run(ctx, s.forgetter.retry) }

// stageAgain, a side job, stages carried messages again.
func (s *session) stageAgain(ctx context.Context) {
	if s.stager != nil {
		s.jobs.stage.Run(ctx, s.stager.round)
	}
}

// touchHeld, a side job, moves on the stage times of messages that are held for long, and of
// delivered messages whose rows could not be deleted.
func (s *session) touchHeld(ctx context.Context) {
	if s.carried == nil {
		return
	}
	s.jobs.touch.Run(ctx, func(ctx context.Context) (time.Duration, error) {
		return s.toucher.round(ctx, s.carried, s.forgetter, s.forwarder.IsHeld)
	})
}

// sweep, a side job, removes orphan rows from time to time.
func (s *session) sweep(ctx context.Context) {
	if !s.ledger.Features().Sweeps || s.opts.SweepAge < 0 {
		return
	}
	pipe.Pause(ctx, sweepFirst)
	sweeper := &sweeper{resources: s.resources, consuming: s.consuming, consumers: s.consumers}
	s.jobs.sweep.Run(ctx, sweeper.round)
}

// explain, a side job, logs whose open transactions hold messages up for long.
func (s *session) explain(ctx context.Context) {
	if s.opts.Watcher != nil {
		s.jobs.explain.Run(ctx, newExplainer(s.resources, s.room).round)
	}
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
	steps := []*pipe.Counter{&s.touching, s.forwarder.Moving(), &s.forgetting} // no message goes back to an earlier one
	for {
		for _, step := range steps {
			select {
			case <-step.Zero():
			case <-ctx.Done():
				return nil
			case <-late:
				left := 0
				for _, step := range steps {
					left += step.Value()
				}
				return errors.Join(fmt.Errorf("%d messages not finished within %v", left, s.opts.Drain), s.finish())
			}
		}
		if s.setAsideSplitGroups() == 0 {
			return s.finish()
		}
	}
}

// finish acks all messages that are done and hands back the rest, once: each return counts towards a
// delivery limit. Messages that come again before the channels end go back at that end.
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
	for _, shard := range s.shards {
		consumers = append(consumers, shard.Consumer())
	}
	return consumers
}

// setAsideSplitGroups sets aside the waiting members of each group that has a member in another queue
// already, and returns their number. Otherwise the group would be handed back whole, and that member
// would be in both queues. No other goroutine may be judging any more. Messages of an ordered queue
// keep their place nevertheless, and a dead letter then comes twice.
func (s *session) setAsideSplitGroups() int {
	split := func(m *message) bool { return !m.place.Ordered() && m.unacked.Split.Load() }
	s.room.enter(false, s.toLookUp.Take(math.MaxInt)...)
	waiting := append(s.room.removeMessages(split), messagesOf(s.forwarder.RemoveHeld(forwards(split)))...)
	waiting = append(waiting, s.carried.removeCopies(split)...)
	s.setAside(waiting...)
	return len(waiting)
}

// failedPatience bounds the last acks of a session that has failed, which usually take milliseconds.
const failedPatience = time.Second

// ackOnFailure has safe messages acked and the rest handed back as soon as failing ends, even while
// a loop still hangs. The acks make requests on the channels, so they wait until consumed is closed:
// a channel serves one request at a time. The caller must call wait at the end.
func (s *session) ackOnFailure(failing context.Context, consumed <-chan struct{}) (wait func()) {
	ended := make(chan struct{})
	stop := context.AfterFunc(failing, func() {
		defer close(ended)
		if s.finished.Load() {
			return
		}
		select {
		case <-consumed:
			s.ackAndClose()
		case <-time.After(failedPatience): // the broker does not answer
			s.consuming.Close()
		}
	})
	return func() {
		if !stop() {
			<-ended
		}
	}
}

var errSessionEnded = errors.New("the session has ended")

// ackAndClose acks safe messages, so that they do not come again, and closes the consuming connection,
// which hands back the rest. Before that it waits for the confirms of messages that are on their way.
// All of it takes failedPatience at most.
func (s *session) ackAndClose() {
	defer s.consuming.Close()
	ctx, cancel := context.WithTimeout(context.Background(), failedPatience)
	defer cancel()
	acked := make(chan struct{})
	go func() { // the broker may not answer
		defer close(acked)
		s.ackLast(ctx)
	}()
	select {
	case <-acked:
	case <-s.consuming.Done():
	case <-ctx.Done():
	}
}

func (s *session) ackLast(ctx context.Context) {
	for s.forwarder.Awaits() && ctx.Err() == nil && s.consuming.Err() == nil {
		pipe.Pause(ctx, 5*time.Millisecond)
	}
	safe := s.toForget.Take(math.MaxInt)
	s.forgetter.remember(undeletedRows(safe), errSessionEnded)
	s.done(safe...)
	s.forgetting.Add(-len(safe))
	select {
	case <-s.forgetting.Zero(): // the session has ended, so a running DELETE is given up
	case <-ctx.Done():
	}
	for _, c := range s.consumers() {
		if err := c.FinishLast(); err != nil {
			return
		}
	}
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
