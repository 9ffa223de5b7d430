// Package otelsender makes OpenTelemetry spans of a sender, and writes the trace context
// (traceparent, tracestate) into the messages' headers:
//
//	s, err := sender.New(ledger, broker, &sender.Options{Tracer: otelsender.New(nil)})
//
// All spans are children of the span in the context of SendTx, StageTx or InTx:
//
//	create emails   producer, one per message; the receiver's span is its child, and so are the verifier's
//	record          the INSERT into the ledger
//	stage           the wait for the broker's confirm; none for carried messages, which wait for none
//
// If a message already has a trace context, the new one replaces it. Package otelhandler is for
// receivers; package otelverifier makes the spans between, and cmd/verifier exports them. The
// package uses OpenTelemetry's API only: without an SDK in the program it makes no spans, and still
// passes on the context of a span in the given context.
package otelsender

import (
	"context"
	"maps"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/otelbridge"
	"github.com/twoqueue/twoqueue/sender"
)

type tracer struct{ tracer trace.Tracer }

// New returns a Tracer for sender.Options. A nil provider means OpenTelemetry's global one.
func New(provider trace.TracerProvider) sender.Tracer {
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	return tracer{provider.Tracer("github.com/twoqueue/twoqueue/sender")}
}

func (t tracer) Create(ctx context.Context, m bridge.Message) amqp.Table {
	to := otelbridge.Destination(m.Target())
	ctx, span := t.tracer.Start(ctx, "create "+to, trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(otelbridge.Attributes(m.Target(), m.ID.String())...),
		trace.WithAttributes(semconv.MessagingOperationTypeCreate, semconv.MessagingOperationName("create"), semconv.MessagingDestinationName(to)))
	defer span.End()
	headers := maps.Clone(m.Publishing.Headers)
	if headers == nil {
		headers = make(amqp.Table)
	}
	propagation.TraceContext{}.Inject(ctx, otelbridge.Headers(headers))
	return headers
}

func (t tracer) Begin(ctx context.Context, step sender.Step, messages int) (ended func(error)) {
	_, span := t.tracer.Start(ctx, string(step), trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(semconv.MessagingBatchMessageCount(messages)))
	return func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}
