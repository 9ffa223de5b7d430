package servertest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// SuspendQueue stops the process of a quorum queue in the shared broker's vhost of a URL,
// until resume is called or the test ends: the queue confirms nothing, as one that has no
// majority. The broker's channel of whoever publishes to it for the first time meanwhile
// answers nothing, for half a minute for each message.
func SuspendQueue(t testing.TB, amqpURL, queue string) (resume func()) {
	t.Helper()
	vhost := amqpURL[strings.LastIndex(amqpURL, "/")+1:]
	tell := func(ctx context.Context, verb string) {
		t.Helper()
		text := fmt.Sprintf(`sys:%s(whereis(list_to_atom("%s_%s"))).`, verb, vhost, queue)
		if _, err := RabbitMQ(t).Ctl(ctx, "eval", text); err != nil {
			t.Errorf("%s the queue: %v", verb, err)
		}
	}
	tell(t.Context(), "suspend")
	// The shared server would keep it, and cannot delete it.
	resume = sync.OnceFunc(func() { tell(context.Background(), "resume") })
	t.Cleanup(resume)
	return resume
}
