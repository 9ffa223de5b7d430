package versions_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
	"github.com/twoqueue/twoqueue/idempotency/versions"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A receiver is a service with one of the strategies.
type receiver struct{ *receivertest.Receiver }

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	return &receiver{receivertest.New(t)}
}

// handBack are the options of a test that dead-letters no message.
var handBack = &versions.Options{HandBack: true}
