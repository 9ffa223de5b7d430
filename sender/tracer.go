package sender

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// A Tracer makes the spans of a Sender. Package otelsender has one for OpenTelemetry. Several
// goroutines call its methods at once, while a transaction is open: they must not block.
type Tracer interface {
	// Create is called for each message of the Sender, with the context of SendTx, StageTx, Stage or
	// InTx. It returns the headers for the message, with the trace context. It must not change the map
	// in m.
	Create(ctx context.Context, m bridge.Message) amqp.Table

	// Begin is called when a step begins, with its number of messages. The returned function is called
	// when the step has ended, with the step's error, or nil.
	Begin(ctx context.Context, step Step, messages int) (ended func(error))
}

// A Step is a part of a transaction for which the transaction waits.
type Step string

const (
	Record Step = "record" // the INSERT into the ledger
	Stage  Step = "stage"  // until messages that are not carried are confirmed: with an order key from their publication, else from Wait
)

func (s *Sender) trace(ctx context.Context, step Step, messages int) (ended func(error)) {
	if s.opts.Tracer == nil {
		return func(error) {}
	}
	return s.opts.Tracer.Begin(ctx, step, messages)
}
