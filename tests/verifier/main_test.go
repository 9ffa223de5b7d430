package verifier_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

func TestMain(m *testing.M) { servertest.Main(m) }

// dial connects verifiers and senders that do not use the stage's connection.
func dial(t *testing.T, address string) *bridge.Broker {
	t.Helper()
	broker, err := bridge.Dial(t.Context(), address, &bridge.BrokerOptions{DialTimeout: stage.Patience, Logger: stage.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	return broker
}

// add adds IDs of expected messages to want.
func add(want map[string]bool, ids ...uuid.UUID) {
	for _, id := range ids {
		want[id.String()] = true
	}
}
