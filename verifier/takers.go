package verifier

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// takers runs the loops of a session that take new work. The first failure ends the session at once,
// because another loop may hang in the database.
type takers struct {
	group  *errgroup.Group
	failed chan error
}

func newTakers(ctx context.Context) (*takers, context.Context) {
	group, ctx := errgroup.WithContext(ctx)
	return &takers{group, make(chan error, 1)}, ctx
}

func (t *takers) Go(loop func() error) {
	t.group.Go(func() error {
		err := loop()
		if err != nil {
			select {
			case t.failed <- err:
			default:
			}
		}
		return err
	})
}

// watch returns the error of the first loop that fails, or nil when ctx ends.
func (t *takers) watch(ctx context.Context) error {
	select {
	case err := <-t.failed:
		return err
	case <-ctx.Done():
		return nil
	}
}
