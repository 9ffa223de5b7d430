package verifier

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A verifier whose last connection was closed, for example because of its age, may never get
// another one. It must not keep its messages from verifiers that have connections.
func TestALookupWithoutAConnectionEndsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const patience = time.Minute
		c := newDBConnections(slog.New(slog.DiscardHandler), 20)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		err := c.lookUp(ctx, new(atomic.Int64), patience, func() error { return driver.ErrNoConnection })
		if took := time.Since(began); !errors.Is(err, driver.ErrNoConnection) || took < patience || took > 2*patience {
			t.Errorf("the lookup has ended after %v with %v, must end after %v with ErrNoConnection", took, err, patience)
		}
		if c.lookupWaits.Load() {
			t.Error("settlers wait for a lookup that has ended")
		}
	})
}
