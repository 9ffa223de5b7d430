package verifier_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// RabbitMQ both delivers and returns a mandatory message to a direct reply-to. A verifier that
// believed the return would send it again and again. So the message is dead-lettered at once, and
// never sent to the asker.
func TestADirectReplyToIsNoTarget(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	asker, questions := s.Queue("asker", nil), s.Queue("questions", nil)
	replies, err := s.Channel.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Channel.PublishWithContext(t.Context(), "", questions, true, false, amqp.Publishing{ReplyTo: "amq.rabbitmq.reply-to"}); err != nil {
		t.Fatal(err)
	}
	to := s.Receive(questions, 1)[0].ReplyTo
	// An older sender, or one in another language, would stage it so.
	good := named(asker, "reply")
	p, err := wire.Encode(good, s.Ledger.Identity())
	if err != nil {
		t.Fatal(err)
	}
	p.Headers[wire.HeaderRoutingKey] = to
	if err := recorded(t, s, good).Commit(); err != nil {
		t.Fatal(err)
	}
	publish(t, s, p)
	v := s.Verify(verifier.Options{Allow: []verifier.Allow{{Exchange: "*", RoutingKey: "*"}}})
	if d := expectDead(t, s, "not-allowed", "direct reply-to"); d.MessageId != good.ID.String() {
		t.Errorf("dead message %s", d.MessageId)
	}
	s.Eventually("its row is gone", func() bool { return s.Rows() == 0 })
	v.Stop()
	if n := len(replies); n != 0 {
		t.Errorf("%d replies came", n)
	}
}
