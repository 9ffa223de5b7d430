package bridgectl_test

import (
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// scene is a stage with a bridgectl that is configured for its servers.
type scene struct {
	*stage.Stage
	*tool
}

func newScene(t *testing.T, kind stage.Database) *scene {
	t.Helper()
	return sceneOn(t, stage.New(t, kind))
}

func sceneOn(t *testing.T, s *stage.Stage) *scene {
	t.Helper()
	return &scene{s, withEnv(t, "BRIDGE_DATABASE_URL="+program.DatabaseURL(t, s.DatabaseURL), "BRIDGE_AMQP_URL="+s.AMQP, "BRIDGE_QUEUE="+s.Topology.Queue)}
}

// managed returns the tool with the management API of the shared broker.
func (s *scene) managed(t *testing.T) *tool {
	t.Helper()
	base := strings.TrimSuffix(servertest.RabbitMQ(t).ManagementURL(), "/api")
	return s.also("BRIDGE_MANAGEMENT_URL=" + base)
}

// letter returns a message to the queue target.
func letter(target, body string) bridge.Message {
	return bridge.Message{RoutingKey: target, Publishing: amqp.Publishing{
		ContentType: "text/plain", Type: "letter", Priority: 3, CorrelationId: "c1",
		Headers: amqp.Table{"colour": "red"}, Body: []byte(body),
	}}
}

// isLetter reports whether d has the ID, the body and all properties of a letter.
func isLetter(d amqp.Delivery, id, body string) bool {
	return d.MessageId == id && string(d.Body) == body && d.ContentType == "text/plain" && d.Type == "letter" && d.Priority == 3 &&
		d.CorrelationId == "c1" && d.DeliveryMode == amqp.Persistent && len(d.Headers) == 1 && d.Headers["colour"] == "red"
}

// deadLetter commits messages whose target does not exist, has a verifier dead-letter them, and
// returns their IDs. The staging queue and the ledger must be empty before.
func (s *scene) deadLetter(messages ...bridge.Message) []string {
	s.t.Helper()
	before := s.Depth(s.Topology.DeadQueue())
	var ids []string
	for _, id := range s.Commit(messages...) {
		ids = append(ids, id.String())
	}
	v := s.Verify(verifier.Options{Unroutable: 10 * time.Millisecond})
	s.WaitDepth(s.Topology.DeadQueue(), before+len(messages))
	s.Eventually("their rows are gone", func() bool { return s.Rows() == 0 })
	v.Stop()
	return ids
}

// fails runs a call that must fail with this exit code and these words.
func (b *tool) fails(code int, words string, args ...string) {
	b.t.Helper()
	r := b.run(args...)
	if r.Code != code || !strings.Contains(r.Stderr, words) || strings.Count(r.Stderr, "\n") != 1 || strings.Contains(r.Stderr, "secret") {
		b.t.Errorf("bridgectl %s: exit code %d, stderr %q, want %d and %q", strings.Join(args, " "), r.Code, r.Stderr, code, words)
	}
}
