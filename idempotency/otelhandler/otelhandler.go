// Package otelhandler makes OpenTelemetry spans for a receiver's handler, which continue the trace
// of the sender:
//
//	consumer, err := idempotency.NewConsumer(broker, "emails", otelhandler.Wrap(nil, "emails", handle), nil)
//
// WrapBatch does the same for idempotency.NewBatchConsumer. The span 'process emails' covers all
// attempts at a message, with the COMMIT and the ack. Its parent is the span in the message's
// headers (traceparent, tracestate). The handler's context contains the span, so messages that the
// handler sends with package otelsender belong to the same trace.
//
// The package uses OpenTelemetry's API only. Package otelsender is for senders.
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

// Wrap returns handle with a span around each call. queue is the queue of the messages. A nil
// provider means OpenTelemetry's global one. If handle returns an error, which means that the
// message comes again, the span has it too.
func Wrap(provider trace.TracerProvider, queue string, handle func(context.Context, amqp.Delivery) error) func(context.Context, amqp.Delivery) error {
	tracer, from := tracerOf(provider), otelbridge.Destination(bridge.Target{RoutingKey: queue})
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

// WrapBatch is Wrap for idempotency.NewBatchConsumer. A batch has one span, which begins a trace,
// and a link to the span in the headers of each message: the messages come from different traces.
func WrapBatch(provider trace.TracerProvider, queue string, handle func(context.Context, []amqp.Delivery) error) func(context.Context, []amqp.Delivery) error {
	tracer, from := tracerOf(provider), otelbridge.Destination(bridge.Target{RoutingKey: queue})
	return func(ctx context.Context, ds []amqp.Delivery) error {
		links := make([]trace.Link, 0, len(ds))
		for _, d := range ds {
			sent := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), otelbridge.Headers(d.Headers)))
			if sent.IsValid() {
				links = append(links, trace.Link{SpanContext: sent})
			}
		}
		ctx, span := tracer.Start(ctx, "process "+from, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(links...),
			trace.WithAttributes(semconv.MessagingSystemRabbitMQ, semconv.MessagingBatchMessageCount(len(ds)),
				semconv.MessagingOperationTypeProcess, semconv.MessagingOperationName("process"), semconv.MessagingDestinationName(from)))
		defer span.End()
		err := handle(ctx, ds)
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		return err
	}
}

func tracerOf(provider trace.TracerProvider) trace.Tracer {
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	return provider.Tracer("github.com/twoqueue/twoqueue/idempotency")
}
