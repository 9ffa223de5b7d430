package world

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/faults/parts"
)

// silence suspends the process of a quorum queue for a while. The queue then confirms nothing, as a
// queue without a majority does.
func silence(ctx context.Context, server *servers.RabbitMQ, queue string, silent time.Duration) error {
	tell := func(ctx context.Context, verb string) error {
		_, err := server.Eval(ctx, `{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)), {Name, _} = amqqueue:get_pid(Q), sys:%s(whereis(Name), infinity)`, queue, verb)
		if err != nil {
			return fmt.Errorf("%s queue: %w", verb, err)
		}
		return nil
	}
	if err := tell(ctx, "suspend"); err != nil {
		return err
	}
	Rest(ctx, silent)
	return tell(context.WithoutCancel(ctx), "resume")
}

// slowTransactions holds more transactions open than all verifiers can wait for. Every second one
// rolls back.
func (w *World) slowTransactions(ctx context.Context, hold time.Duration) error {
	const transactions, orders = 40, 5
	targets := []bridge.Target{Classic, Quorum, Exchange}
	var script []parts.Transaction
	for i := range transactions {
		t := parts.Transaction{Hold: hold, RollBack: i%2 == 1}
		for j := range orders {
			t.Orders = append(t.Orders, parts.Order{ID: uuid.Must(uuid.NewV7()), To: targets[(i+j)%len(targets)]})
		}
		script = append(script, t)
	}
	sender := w.newSlowSender(script)
	sender.Start()
	select {
	case <-sender.Done():
		return sender.Ended()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
