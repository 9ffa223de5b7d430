package servertest

import (
	"context"
	"strings"
	"sync"
	"testing"
)

// SuspendQueues stops the processes of quorum queues in the shared broker's vhost of a URL,
// until resume is called or the test ends: such a queue confirms nothing, as one that has no
// majority. The broker's channel of whoever publishes to it for the first time meanwhile
// answers nothing, for half a minute for each message.
func SuspendQueues(t testing.TB, amqpURL string, queues ...string) (resume func()) {
	t.Helper()
	vhost := amqpURL[strings.LastIndex(amqpURL, "/")+1:]
	tell := func(ctx context.Context, verb string) {
		t.Helper()
		if _, err := RabbitMQ(t).Eval(ctx, `[sys:%s(whereis(list_to_atom("%s_" ++ Q))) || Q <- ["%s"]]`,
			verb, vhost, strings.Join(queues, `","`)); err != nil {
			t.Errorf("%s %v: %v", verb, queues, err)
		}
	}
	tell(t.Context(), "suspend")
	// The shared server would keep them, and cannot delete them.
	resume = sync.OnceFunc(func() { tell(context.Background(), "resume") })
	t.Cleanup(resume)
	return resume
}
