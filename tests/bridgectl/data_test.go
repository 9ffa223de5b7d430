package bridgectl_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// A scene is a stage with a tool that knows its servers.
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
	return &scene{s, withEnv(t, "BRIDGE_DATABASE_URL="+databaseURL(s), "BRIDGE_AMQP_URL="+s.AMQP, "BRIDGE_QUEUE="+s.Topology.Queue)}
}

// databaseURL is the stage's database as the commands name it.
func databaseURL(s *stage.Stage) string {
	if file, ok := strings.CutPrefix(s.DatabaseURL, "file:"); ok {
		path, _, _ := strings.Cut(file, "?")
		return "sqlite:" + path
	}
	return s.DatabaseURL
}

// managed is the tool with the management API of the shared broker.
func (s *scene) managed(t *testing.T) *tool {
	t.Helper()
	base := strings.TrimSuffix(servertest.RabbitMQ(t).ManagementURL(), "/api")
	return s.also("BRIDGE_MANAGEMENT_URL=" + base)
}

// A letter is a message of a test.
func letter(target, body string) bridge.Message {
	return bridge.Message{RoutingKey: target, Publishing: amqp.Publishing{
		ContentType: "text/plain", Type: "letter", Priority: 3, CorrelationId: "c1",
		Headers: amqp.Table{"colour": "red"}, Body: []byte(body),
	}}
}

// isLetter tells whether d is, in all its parts, that letter.
func isLetter(d amqp.Delivery, id, body string) bool {
	return d.MessageId == id && string(d.Body) == body && d.ContentType == "text/plain" && d.Type == "letter" && d.Priority == 3 &&
		d.CorrelationId == "c1" && d.DeliveryMode == amqp.Persistent && len(d.Headers) == 1 && d.Headers["colour"] == "red"
}

// bury puts letters into the dead queue, and returns their IDs.
func (s *scene) bury(t *testing.T, target string, n int) []string {
	t.Helper()
	ids, letters := make([]string, n), make([]bridge.Message, n)
	for i := range letters {
		id := uuid.Must(uuid.NewV7())
		ids[i], letters[i] = id.String(), letter(target, id.String())
		letters[i].ID = id
	}
	s.buryAll(t, letters...)
	return ids
}

// buryAll puts messages into the dead queue in the form in which a verifier does what is
// committed and unroutable. Their rows are gone.
func (s *scene) buryAll(t *testing.T, messages ...bridge.Message) {
	t.Helper()
	var out []bridge.Outgoing
	for _, m := range messages {
		publishing, err := wire.Encode(m, s.Ledger.Identity())
		if err != nil {
			t.Fatal(err)
		}
		publishing.Headers[wire.HeaderDeadReason] = "unroutable"
		publishing.Headers[wire.HeaderDeadText] = "it was not there"
		publishing.Headers[wire.HeaderDeadVerdict] = "committed"
		publishing.Headers[wire.HeaderDeadAttempts] = int64(4)
		publishing.Headers[wire.HeaderDeadAt] = time.Now().UTC().Format(time.RFC3339)
		out = append(out, bridge.Outgoing{Target: bridge.Target{RoutingKey: s.Topology.DeadQueue()}, Publishing: publishing})
	}
	if err := s.Broker.Publish(t.Context(), out); err != nil {
		t.Fatal(err)
	}
}

// peek returns what is in a queue, and leaves it there.
func (s *scene) peek(t *testing.T, queue string) []amqp.Delivery {
	t.Helper()
	conn, err := amqp.Dial(s.AMQP)
	if err != nil {
		t.Fatal(err)
	}
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	depth := s.Depth(queue)
	var all []amqp.Delivery
	for {
		d, ok, err := ch.Get(queue, false)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		all = append(all, d)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	s.WaitDepth(queue, depth)
	return all
}

// fails runs a call that has to fail with this exit code and these words.
func (b *tool) fails(code int, words string, args ...string) {
	b.t.Helper()
	r := b.run(args...)
	if r.Code != code || !strings.Contains(r.Stderr, words) || strings.Count(r.Stderr, "\n") != 1 || strings.Contains(r.Stderr, "secret") {
		b.t.Errorf("bridgectl %s: exit code %d, stderr %q, want %d and %q", strings.Join(args, " "), r.Code, r.Stderr, code, words)
	}
}
