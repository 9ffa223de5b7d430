// Package otelhandler makes OpenTelemetry spans of a receiver's handler, which go on with the trace
// of the sender:
//
//	consumer, err := idempotency.NewConsumer(broker, "emails", otelhandler.Wrap(nil, "emails", handle), nil)
//
// The span 'process emails' covers all attempts at a message, with the COMMIT and the ack. Its parent
// is the span in the message's headers (traceparent, tracestate). The handler's context has it: so
// messages that the handler sends with package otelsender belong to the same trace.
//
// It uses OpenTelemetry's API only. Package otelsender is for senders.
package otelhandler

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/otelbridge"
)

// Wrap returns handle with a span around each call. queue is the one that the messages come from.
// provider may be nil: OpenTelemetry's global one. If handle returns an error, which says that the
// message comes again, the span has it too.
func Wrap(provider trace.TracerProvider, queue string, handle func(context.Context, amqp.Delivery) error) func(context.Context, amqp.Delivery) error {
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	tracer := provider.Tracer("github.com/twoqueue/twoqueue/idempotency")
	from := otelbridge.Destination(bridge.Target{RoutingKey: queue})
	return func(ctx context.Context, d amqp.Delivery) error {
		ctx = propagation.TraceContext{}.Extract(ctx, otelbridge.Headers(d.Headers))
		ctx, span := tracer.Start(ctx, "process "+from, trace.WithSpanKind(trace.SpanKindConsumer),
			trace.WithAttributes(otelbridge.Attributes(bridge.Target{Exchange: d.Exchange, RoutingKey: d.RoutingKey}, d.MessageId)...),
			trace.WithAttributes(semconv.MessagingOperationTypeProcess, semconv.MessagingOperationName("process"), semconv.MessagingDestinationName(from)))
		defer span.End()
		err := handle(ctx, d)
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		return err
	}
}
