package servers_test

import (
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// RabbitMQ 3.10 does not bring back a quorum queue that was declared some
// tenths of a second before the kill: it is there, but without a leader. So
// the queue is made safe by an orderly restart first. Its messages are safe
// once confirmed.
func TestRabbitMQKeepsConfirmedMessagesOverKill(t *testing.T) {
	leavesNothing(t)
	server := servertest.StartRabbitMQ(t, nil)
	publishConfirmed(t, server.URL(), "kept", "before the restart")
	if err := server.Restart(t.Context()); err != nil { // of a running server
		t.Fatal(err)
	}
	publishConfirmed(t, server.URL(), "kept", "before the kill")

	server.Kill()
	if conn, err := amqp.Dial(server.URL()); err == nil {
		conn.Close()
		t.Fatal("a killed server answered")
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}

	for _, want := range []string{"before the restart", "before the kill"} {
		if body := get(t, server.URL(), "kept"); body != want {
			t.Fatalf("the queue holds %q, not the message %q", body, want)
		}
	}
}

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

func get(t *testing.T, url, queue string) string {
	t.Helper()
	delivery, ok, err := open(t, url).Get(queue, true)
	if err != nil || !ok {
		t.Fatalf("get from %s: found %v, %v", queue, ok, err)
	}
	return string(delivery.Body)
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
