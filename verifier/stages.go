package verifier

import (
	"context"

	"golang.org/x/sync/errgroup"
)

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
