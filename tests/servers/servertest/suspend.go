package servertest

import (
	"context"
	"strings"
	"sync"
	"testing"
)

// SuspendQueues suspends the processes of quorum queues in the shared broker's vhost of a URL,
// until resume is called or the test ends. Such a queue confirms nothing, like a queue without a
// majority. If a channel publishes to it for the first time meanwhile, the broker's side of that
// channel answers nothing for half a minute per message.
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
	// The shared server would keep suspended queues, and could not delete them.
	resume = sync.OnceFunc(func() { tell(context.Background(), "resume") })
	t.Cleanup(resume)
	return resume
}
