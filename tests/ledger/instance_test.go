package ledger_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/proof"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// A restart may bring back older data: the ledger believes no outcome before another proof.
func expectOtherInstance(t *testing.T, ledger driver.Ledger, restart func()) {
	t.Helper()
	proven, err := proof.Prove(t.Context(), ledger)
	must(t, err)
	ids := []uuid.UUID{newID()}
	_, err = proven.Committed(t.Context(), ids)
	must(t, err)
	restart()
	servertest.Eventually(t, "the proof is over", func() bool {
		_, err := proven.Committed(t.Context(), ids)
		if err == nil {
			t.Fatal("an outcome of the restarted server is believed")
		}
		return errors.Is(err, bridge.ErrOtherInstance) // otherwise a broken connection
	})
	again, err := proof.Prove(t.Context(), ledger)
	must(t, err)
	_, err = again.Settle(t.Context(), ids[0], 0)
	must(t, err)
}
