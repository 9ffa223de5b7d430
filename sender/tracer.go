package sender

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// A Tracer makes the spans of a Sender. Package otelsender has one for OpenTelemetry. Its methods
// are called by several goroutines at once, while a transaction is open: they must not block.
type Tracer interface {
	// Create is called for each message that the Sender is given, with the context of SendTx,
	// StageTx, Stage or InTx. It returns the headers that the message shall have, with its trace
	// context. It must not change the map in m.
	Create(ctx context.Context, m bridge.Message) amqp.Table

	// Begin is called when a step of so many messages begins. It returns a function that is called
	// with the step's error, or nil, when the step has ended.
	Begin(ctx context.Context, step Step, messages int) (ended func(error))
}

// A Step is a part of a transaction for which the transaction waits.
type Step string

const (
	Record Step = "record" // the INSERT into the ledger
	Stage  Step = "stage"  // from the publication of messages that are not carried, or from Wait, until they are confirmed
)

func (s *Sender) trace(ctx context.Context, step Step, messages int) (ended func(error)) {
	if s.opts.Tracer == nil {
		return func(error) {}
	}
	return s.opts.Tracer.Begin(ctx, step, messages)
}
