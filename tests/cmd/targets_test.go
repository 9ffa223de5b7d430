package cmd_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// A missing target does not make the verifier unready: it goes on with the others. The metrics
// count the target, and the doctor names it, the fix, and the time of the next dead letter.
func TestATargetThatTakesNothingIsReported(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	p := verify(t, s, "BRIDGE_STATUS_ADDR=127.0.0.1:0", "BRIDGE_UNROUTABLE=1h", "BRIDGE_PATIENCE=1h")
	p.AwaitEndpoint("/readyz", 200, "ok\n")
	s.Commit(stage.To("missing", ""))
	p.AwaitEndpoint("/readyz", 200, "ok\ntargets: 1 is unavailable, and its messages wait; the log and the status page name it\n")
	doctor := start(t, "bridgectl", "doctor", "broker", "--worker", "http://"+p.Where("status page"),
		"BRIDGE_AMQP_URL="+s.AMQP, "BRIDGE_QUEUE="+s.Topology.Queue)
	doctor.Await()
	said := strings.Join(strings.Fields(doctor.Stdout.String()), " ")
	for _, words := range []string{`queue "missing" accepts nothing: the queue does not exist; 1 message for`, "the next dead letter in", "> declare the queue"} {
		if !strings.Contains(said, words) {
			t.Errorf("the doctor does not say %q:\n%s%s", words, doctor.Stdout.String(), doctor.Stderr.String())
		}
	}
	s.Queue("missing", nil)
	s.Receive("missing", 1)
	p.AwaitEndpoint("/readyz", 200, "ok\n")
}

// A stream of messages from another database's ledger is a misconfiguration that an operator must
// correct.
func TestAStreamOfForeignMessagesIsNotReady(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	p := verify(t, s)
	p.AwaitEndpoint("/readyz", 200, "ok\n")
	for range 10 {
		foreign, err := wire.Encode(bridge.Message{ID: uuid.New(), RoutingKey: "q", Publishing: amqp.Publishing{}}, uuid.New())
		must(t, err)
		must(t, s.Channel.PublishWithContext(t.Context(), "", s.Topology.Queue, false, false, foreign))
	}
	p.AwaitEndpoint("/readyz", 503, "ledger: 10 or more messages of another database's ledger came within 5m0s and went to the dead queue; give each database a staging queue of its own\n")
}
