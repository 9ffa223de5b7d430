package wire_test

import (
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// blames checks that err is the PublishError of m.
func blames(t *testing.T, err error, m bridge.Outgoing) {
	t.Helper()
	var failed *bridge.PublishError
	if !errors.As(err, &failed) {
		t.Errorf("no PublishError: %v", err)
		return
	}
	if failed.ID.String() != m.MessageId || failed.Target != m.Target {
		t.Errorf("the blamed message is %s to %s, not %s to %s", failed.ID, failed.Target, m.MessageId, m.Target)
	}
}

func TestPublishSucceedsOnlyWhenAllAreInAQueue(t *testing.T) {
	t.Parallel()
	vhost := servertest.Vhost(t)
	declare(t, vhost, "q", nil)
	declare(t, vhost, "full", amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	broker := dial(t, vhost, nil)

	if err := broker.Publish(t.Context(), nil); err != nil {
		t.Errorf("nothing: %v", err)
	}
	if err := broker.Publish(within(t, patience), outgoing("q", 1000)); err != nil {
		t.Fatal(err)
	}
	if n := depth(t, vhost, "q"); n != 1000 {
		t.Errorf("%d messages in the queue, all 1000 confirmed", n)
	}

	messages := slices.Concat(outgoing("q", 100), outgoing("nowhere", 1), outgoing("q", 100))
	err := fails(t, broker, messages, patience, bridge.ErrReturned)
	blames(t, err, messages[100])
	contains(t, err, `to queue "nowhere": message returned as unroutable`)

	publishes(t, broker, "full")
	messages = slices.Concat(outgoing("q", 100), outgoing("full", 1), outgoing("q", 100))
	err = fails(t, broker, messages, patience, bridge.ErrNacked)
	blames(t, err, messages[100])

	messages = outgoing("", 1)
	messages[0].Exchange = "missing"
	err = fails(t, broker, messages, patience, bridge.ErrUnconfirmed)
	blames(t, err, messages[0])
	if refusal := bridge.Refusal(err); refusal == nil || refusal.Code != amqp.NotFound {
		t.Errorf("refusal %v of %v", refusal, err)
	}
	// The refusal has ended the connection. Messages that its end hits get an error.
	servertest.Eventually(t, "a message passes", func() bool {
		err := broker.Publish(within(t, patience), outgoing("q", 1))
		if err != nil && !bridge.Retryable(err) {
			t.Fatal(err)
		}
		return err == nil
	})
}

func TestARefusedLoginIsReported(t *testing.T) {
	t.Parallel()
	vhost := servertest.Vhost(t)
	parsed, err := url.Parse(vhost)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := url.Parse(servertest.User(t, servertest.Vhost(t), "", "", ""))
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*url.URL){
		"password":      func(u *url.URL) { u.User = url.UserPassword("guest", "s3cr3t") },
		"user":          func(u *url.URL) { u.User = url.UserPassword("unknown", "s3cr3t") },
		"missing vhost": func(u *url.URL) { u.Path = "/not-there" },
		"foreign vhost": func(u *url.URL) { u.User = stranger.User },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // RabbitMQ delays its refusal
			address := *parsed
			change(&address)
			broker, err := bridge.Dial(t.Context(), address.String(), nil)
			if err == nil {
				broker.Close()
			}
			if !errors.Is(err, bridge.ErrCredentials) || bridge.Retryable(err) {
				t.Fatalf("error %v", err)
			}
			password, _ := address.User.Password()
			for _, secret := range []string{password, address.User.Username(), strings.Trim(address.Path, "/")} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("the error contains %q: %v", secret, err)
				}
			}
		})
	}
}

// A limit is reached for a while, as when the old processes of a deployment still run.
func TestALimitOfConnectionsIsNoRefusedLogin(t *testing.T) {
	t.Parallel()
	for _, of := range []string{"vhost", "user"} {
		address := servertest.User(t, servertest.Vhost(t), "", "", "")
		servertest.NoConnections(t, address, of)
		broker, err := bridge.Dial(t.Context(), address, nil)
		if err == nil {
			broker.Close()
		}
		if errors.Is(err, bridge.ErrCredentials) || !bridge.Retryable(err) || !errors.Is(err, bridge.ErrConnectionLimit) {
			t.Errorf("of the %s: error %v", of, err)
		}
	}
}
