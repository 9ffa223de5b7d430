package bridge

import (
	"context"
	"errors"
	"strings"
	"testing"

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
		err := Topology{Queue: queue}.Declare(t.Context(), nil) // a broker is not asked
		if err == nil || !strings.Contains(err.Error(), "field Queue") {
			t.Errorf("a name of %d bytes: %v", len(queue), err)
		}
	}
}
