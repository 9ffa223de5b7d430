package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twoqueue/twoqueue/idempotency"
)

// examineRetryQueues examines the retry queues of a receiver with the default delays of
// idempotency.DeclareReceiver. It adds nothing if none of them exists: the receiver has other
// delays, or retries in place.
func examineRetryQueues(ctx context.Context, g *group, m *management, name string) {
	c := g.check("retry queues of " + name)
	var missing []string
	wanted := idempotency.ReceiverQueues(name, nil)[2:]
	for _, want := range wanted {
		q, err := m.queue(ctx, want.Name)
		switch {
		case errors.Is(err, errNotThere):
			missing = append(missing, want.Name)
			continue
		case err != nil:
			c.unanswered(err)
			return
		}
		var wrong []string
		for argument, value := range want.Arguments {
			if there := q.Arguments[argument]; !sameValue(there, value) {
				wrong = append(wrong, fmt.Sprintf("%s is %s, not %s", argument, valueText(there), valueText(value)))
			}
		}
		if len(wrong) > 0 {
			slices.Sort(wrong)
			c.fail("delete the queue when it is empty; idempotency.DeclareReceiver declares it", "%s: %s: the receiver does not start, or messages return late, or are lost", want.Name, strings.Join(wrong, "; "))
		}
	}
	switch {
	case len(missing) == len(wanted):
		return // other delays, or none
	case len(missing) > 0:
		c.warn("restart the receiver: idempotency.DeclareReceiver declares them", "%s missing: messages that fail are retried in place, and delay other messages", strings.Join(missing, ", "))
	}
	c.okIfNoneFound("messages that fail wait there, and return at least once")
}
