package world

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/tests/faults/parts"
)

// PublishStrays publishes messages that belong into the dead queue, of the kind StrayMessages,
// UnreadableMessages or UnpublishableMessages. It publishes all kinds into the staging queue, and
// all except StrayMessages into the waiting queue too.
func (w *World) PublishStrays(ctx context.Context, kind FaultKind) error {
	foreign, err := wire.Encode(parts.Message(uuid.Must(uuid.NewV7()), Classic), uuid.New())
	if err != nil {
		return err
	}
	queues := []string{w.config.Topology.Queue, w.config.Topology.WaitingQueue()}
	strays := make(map[string]amqp.Publishing) // by the reason of their dead letter
	switch kind {
	case StrayMessages:
		queues = queues[:1]
		strays[wire.DeadForeign] = foreign
		strays[wire.DeadMalformed] = amqp.Publishing{MessageId: "no UUID", Body: []byte("no message of ours")}
	case UnreadableMessages:
		const lists = 40 // amqp091-go reads 32 nested lists
		value := any("core")
		for range lists {
			value = []any{value}
		}
		foreign.Headers["lists"] = value
		strays[wire.DeadMalformed] = foreign
	case UnpublishableMessages:
		// amqp091-go reads 8,192 headers. The broker may add two when it delivers the message
		// again, and a dead letter needs five.
		const most = 8192 - 3
		for n := 0; len(foreign.Headers) < most-1; n++ {
			foreign.Headers[fmt.Sprint(n)] = true
		}
		strays[wire.DeadMalformed] = foreign // more than a thousand headers are malformed
	}
	for _, queue := range queues {
		for reason, p := range strays {
			if err := w.publishStray(ctx, queue, reason, p); err != nil {
				return fmt.Errorf("publish stray: %w", err)
			}
		}
	}
	return nil
}

func (w *World) publishStray(ctx context.Context, queue, reason string, p amqp.Publishing) error {
	stray := Stray{Reason: reason, Staged: queue == w.config.Topology.Queue}
	name := reason + " " + uuid.NewString()
	if p.Headers == nil {
		p.Headers = make(amqp.Table)
	}
	p.Headers[strayHeader] = name
	p.DeliveryMode = amqp.Persistent
	stray.At = time.Now() // a staging queue that is deleted later may have had the stray
	return w.onChannel(func(ch *amqp.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		returns := ch.NotifyReturn(make(chan amqp.Return, 1))
		const mandatory, immediate = true, false
		confirm, err := ch.PublishWithDeferredConfirm("", queue, mandatory, immediate, p)
		if err != nil {
			return err
		}
		acked, err := confirm.WaitContext(ctx)
		if err == nil && acked && len(returns) == 0 {
			w.event(func(e *Events) { e.Strays[name] = stray })
		}
		return err
	})
}
