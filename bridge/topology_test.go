package bridge

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestTheBrokersWordsNameTheArgumentThatDiffers(t *testing.T) {
	for _, test := range []struct{ words, property, reason string }{
		{
			"PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'staging' in vhost '/': received none but current is the value '60000' of type 'signedint'",
			"x-message-ttl", "received none but current is the value '60000' of type 'signedint'",
		},
		{
			"PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'staging' in vhost 'a: b': received 'true' but current is 'false'",
			"durable", "received 'true' but current is 'false'",
		},
	} {
		err := declareError("staging", &amqp.Error{Code: amqp.PreconditionFailed, Reason: test.words})
		var mismatch *QueueMismatch
		if !errors.As(err, &mismatch) {
			t.Fatalf("%s: %v", test.words, err)
		}
		if want := (QueueMismatch{"staging", test.property, test.reason}); *mismatch != want {
			t.Errorf("got %+v, want %+v", *mismatch, want)
		}
		if text := err.Error(); !strings.Contains(text, `queue "staging" exists with another `+test.property) {
			t.Errorf("text %q", text)
		}
	}
}

func TestOtherErrorsOfADeclarationAreKept(t *testing.T) {
	if err := declareError("q", nil); err != nil {
		t.Error(err)
	}
	locked := &amqp.Error{Code: amqp.ResourceLocked, Reason: "RESOURCE_LOCKED - cannot obtain exclusive access"}
	if err := declareError("q", locked); !errors.Is(err, locked) || errors.Is(err, ErrUnavailable) {
		t.Errorf("a locked queue: %v", err)
	}
	if err := declareError("q", context.DeadlineExceeded); !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer: %v", err)
	}
}

func TestATopologyNeedsAName(t *testing.T) {
	for _, queue := range []string{"", strings.Repeat("q", 201)} {
		err := Topology{Queue: queue}.Declare(t.Context(), nil) // the broker is not needed for that
		if err == nil || !strings.Contains(err.Error(), "field Queue") {
			t.Errorf("a name of %d bytes: %v", len(queue), err)
		}
	}
}

// A busy RabbitMQ closes the connection if a new quorum queue gets no leader in time.
func TestABrokerThatFailsToDeclareIsAskedAgain(t *testing.T) {
	var (
		failed  = method{10, 50, "\x02\x1d" + "\x12cluster_not_formed" + "\x00\x32\x00\x0a"}
		refused = method{20, 40, "\x01\x95" + "\x06locked" + "\x00\x32\x00\x0a"}
		ok      = method{50, 11, "\x01q" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00"}
	)
	for _, test := range []struct {
		name    string
		answers []method // the last one answers all further questions
		code    int      // of the error; 0: none
		dials   int32
	}{
		{"it declares at once", []method{ok}, 0, 1},
		{"it fails twice", []method{failed, ok, failed, ok}, 0, 3},
		{"it fails always", []method{failed}, amqp.InternalError, 3},
		{"it refuses", []method{refused}, amqp.ResourceLocked, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &peer{on: func() func(peerMessage) bool { return func(peerMessage) bool { return true } }}
				p.declare = func() method {
					answer := test.answers[0]
					if len(test.answers) > 1 {
						test.answers = test.answers[1:]
					}
					return answer
				}
				err := Topology{Queue: "q"}.Declare(t.Context(), p.broker(t, BrokerOptions{}))
				var answer *amqp.Error
				if errors.As(err, &answer); (err == nil) != (test.code == 0) || answer != nil && answer.Code != test.code {
					t.Errorf("the error is %v, must have code %d", err, test.code)
				}
				if n := p.dials.Load(); n != test.dials {
					t.Errorf("%d connections, must be %d", n, test.dials)
				}
			})
		})
	}
}
