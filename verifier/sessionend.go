package verifier

import (
	"context"
	"errors"
	"math"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twoqueue/twoqueue/verifier/internal/pipe"
)

// lastMoment bounds the work of a session that has failed. Usually it takes some milliseconds.
const lastMoment = time.Second

var errSessionEnded = errors.New("the session has ended")

// ackAndClose acks safe messages before a session that has failed hands the rest back: a message
// that is acked now does not come again. It waits a moment for the confirms of messages that are on
// their way. Then it closes the consuming connection.
func (s *session) ackAndClose() {
	defer s.consuming.Close()
	ctx, cancel := context.WithTimeout(context.Background(), lastMoment)
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
	const look = 5 * time.Millisecond
	for s.forwarder.Awaits() && ctx.Err() == nil && s.consuming.Err() == nil {
		pipe.Pause(ctx, look)
	}
	safe := s.toForget.Take(math.MaxInt)
	s.forgetter.keep(leftRows(safe), errSessionEnded)
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

// stages runs the stages of a session that take new work. The first failure ends the session at
// once, because another stage may hang in the database.
type stages struct {
	group  *errgroup.Group
	failed chan error
}

func newStages(ctx context.Context) (*stages, context.Context) {
	group, ctx := errgroup.WithContext(ctx)
	return &stages{group, make(chan error, 1)}, ctx
}

func (t *stages) Go(stage func() error) {
	t.group.Go(func() error {
		err := stage()
		if err != nil {
			select {
			case t.failed <- err:
			default:
			}
		}
		return err
	})
}

// watch returns the error of the first stage that fails, or nil when ctx ends.
func (t *stages) watch(ctx context.Context) error {
	select {
	case err := <-t.failed:
		return err
	case <-ctx.Done():
		return nil
	}
}
