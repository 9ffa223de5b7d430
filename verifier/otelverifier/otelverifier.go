// Package otelverifier makes OpenTelemetry spans for a verifier's work, in the trace that the
// sender has named in the message's headers (traceparent, tracestate):
//
//	options := &verifier.Options{Allow: allow}
//	options.Observer = otelverifier.New(nil, options.Topology)
//
// The spans of one message are
//
//	verify      consumer, from its delivery until its ack is due; its status is an error if the message
//	            went to the dead queue. It has twoqueue.verdict and twoqueue.reason
//	  settle    until the outcome of its transaction is known
//	  forward   producer, until its target, or another queue that it goes to, has confirmed it
//	  delete    until its row is deleted
//
// The spans are made when the message is done, with the times of verifier.Event. A message without
// a trace context begins a new trace. The header reaches the receiver as the sender wrote it;
// package idempotency/otelhandler continues the trace.
//
// The package uses OpenTelemetry's API only. cmd/verifier exports the spans.
package otelverifier

import (
	"context"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/otelbridge"
	"github.com/twoqueue/twoqueue/verifier"
)

type observer struct {
	tracer   trace.Tracer
	topology bridge.Topology
}

// New returns an Observer for verifier.Options. topology is the topology in the same options. A nil
// provider means OpenTelemetry's global one. Its span processors must not block, because messages
// wait for an Observer; the SDK's batch processor drops spans instead.
func New(provider trace.TracerProvider, topology bridge.Topology) verifier.Observer {
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	if topology.Queue == "" {
		topology.Queue = verifier.DefaultQueue
	}
	return &observer{provider.Tracer("github.com/twoqueue/twoqueue/verifier"), topology}
}

// SessionEnded implements verifier.Observer.
func (o *observer) SessionEnded(error) {}

// Done implements verifier.Observer.
func (o *observer) Done(e verifier.Event) {
	ctx := propagation.TraceContext{}.Extract(context.Background(), otelbridge.Headers(e.Message.Message.Publishing.Headers))
	ctx, verify := o.start(ctx, "verify", e.Received, trace.SpanKindConsumer, append(
		o.about(e, bridge.Target{RoutingKey: o.topology.Queue}),
		semconv.MessagingOperationTypeProcess, semconv.MessagingOperationName("verify"), attribute.String("twoqueue.verdict", string(e.Verdict))))
	if e.Reason != "" {
		verify.SetAttributes(attribute.String("twoqueue.reason", e.Reason))
	}
	if e.Verdict == verifier.DeadLettered {
		verify.SetStatus(codes.Error, "dead-lettered: "+e.Reason)
	}
	defer verify.End(trace.WithTimestamp(e.Done))
	if !verify.IsRecording() {
		return // not sampled
	}
	o.part(ctx, "settle", e.Received, e.Judged, trace.SpanKindInternal, nil)
	began := e.Judged
	if began.IsZero() {
		began = e.Received // set aside without a verdict
	}
	o.part(ctx, "forward", began, e.Safe, trace.SpanKindProducer, append(o.about(e, o.destination(e)),
		semconv.MessagingOperationTypeSend, semconv.MessagingOperationName("forward")))
	if e.Verdict == verifier.Forwarded {
		o.part(ctx, "delete", e.Safe, e.Done, trace.SpanKindInternal, nil)
	}
}

// destination returns the message's target, or the queue that it was put into instead.
func (o *observer) destination(e verifier.Event) bridge.Target {
	switch e.Verdict {
	case verifier.DeadLettered:
		return bridge.Target{RoutingKey: o.topology.DeadQueue()}
	case verifier.SetAside:
		return bridge.Target{RoutingKey: o.topology.WaitingQueue()}
	case verifier.Dropped:
		return bridge.Target{RoutingKey: o.topology.AuditQueue()}
	}
	return e.Message.Target()
}

func (o *observer) about(e verifier.Event, to bridge.Target) []attribute.KeyValue {
	return append(otelbridge.Attributes(to, e.ID), semconv.MessagingDestinationName(otelbridge.Destination(to)))
}

func (o *observer) start(ctx context.Context, name string, began time.Time, kind trace.SpanKind, about []attribute.KeyValue) (context.Context, trace.Span) {
	return o.tracer.Start(ctx, name, trace.WithTimestamp(began), trace.WithSpanKind(kind), trace.WithAttributes(about...))
}

// part makes the span of a step, if the step has happened.
func (o *observer) part(ctx context.Context, name string, began, ended time.Time, kind trace.SpanKind, about []attribute.KeyValue) {
	if began.IsZero() || ended.IsZero() {
		return
	}
	_, span := o.start(ctx, name, began, kind, about)
	span.End(trace.WithTimestamp(ended))
}
