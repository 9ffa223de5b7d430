package servers_test

import (
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestRabbitMQCtl(t *testing.T) {
	leavesNothing(t)
	server := servertest.StartRabbitMQ(t, nil)
	publishConfirmed(t, server.URL(), "listed", "body")
	output, err := server.Ctl(t.Context(), "list_queues", "--quiet", "--no-table-headers", "name", "type")
	if err != nil {
		t.Fatal(err)
	}
	if want := "listed\tquorum"; strings.TrimSpace(output) != want {
		t.Fatalf("list_queues printed %q, not %q", output, want)
	}
	if _, err := server.Ctl(t.Context(), "no_such_command"); err == nil || !strings.Contains(err.Error(), "exit status 64") {
		t.Fatalf("error of a wrong command: %v", err)
	}
}

func publishConfirmed(t *testing.T, url, queue, body string) {
	t.Helper()
	channel := open(t, url)
	_, err := channel.QueueDeclare(queue, true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum})
	if err != nil {
		t.Fatal(err)
	}
	if err := channel.Confirm(false); err != nil {
		t.Fatal(err)
	}
	servertest.Eventually(t, "the message is confirmed", func() bool { // a queue that has lost its leader may nack
		confirmation, err := channel.PublishWithDeferredConfirm("", queue, true, false,
			amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body)})
		if err != nil {
			t.Fatal(err)
		}
		acked, err := confirmation.WaitContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return acked
	})
}

func open(t *testing.T, url string) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the server may be gone
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return channel
}
