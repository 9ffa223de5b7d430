package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/program"
	"github.com/twoqueue/twoqueue/verifier"
	"github.com/twoqueue/twoqueue/verifier/sidejob"
)

// flushPatience is how long the end waits for the collector.
const flushPatience = 5 * time.Second

// traces makes spans of what becomes of a message, and has them exported: they belong
// to the trace that the sender has named in the message's headers.
//
//	verify                   from its delivery until its ack is due
//	  settle                 until it is known what became of its transaction
//	  forward                until its target, or another queue that it goes to, has confirmed it
//	  delete                 until its row is deleted
//
// A message's spans are made when all is over, with the times that package verifier
// has noted: a verifier without traces pays nothing, and one with them no lock.
type traces struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	topology bridge.Topology
}

// newTraces returns nil unless the environment asks for traces, by OpenTelemetry's own
// variables: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_EXPORTER and the others, which
// the exporter reads by itself.
func newTraces(ctx context.Context, logger *slog.Logger, topology bridge.Topology) (*traces, error) {
	if wanted, err := tracesWanted(); err != nil || !wanted {
		return nil, err
	}
	job := sidejob.New("traces", logger)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(job.Report))
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, &tracesError{fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT: %w", err)}
	}
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(semconv.ServiceName("twoqueue-verifier"), semconv.ServiceVersion(program.Release())),
		resource.WithFromEnv()) // OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say better
	if err != nil {
		return nil, &tracesError{fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)}
	}
	provider := sdk.NewTracerProvider(sdk.WithBatcher(watched{exporter, job}), sdk.WithResource(about))
	logger.Info("traces are exported")
	return &traces{provider, provider.Tracer("github.com/twoqueue/twoqueue/verifier"), topology}, nil
}

// watched is an exporter of which the log says whether it works.
type watched struct {
	sdk.SpanExporter
	job *sidejob.Job
}

func (w watched) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	w.job.Report(w.SpanExporter.ExportSpans(ctx, spans))
	return nil // it has been told
}

// tracesWanted reads the variables that turn traces on and off.
func tracesWanted() (bool, error) {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	switch exporter := os.Getenv("OTEL_TRACES_EXPORTER"); exporter {
	case "none":
		return false, nil
	case "otlp":
	case "":
		if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
			return false, nil
		}
	default:
		return false, &tracesError{fmt.Errorf("OTEL_TRACES_EXPORTER: %q is not usable; give otlp or none", exporter)}
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if protocol := os.Getenv(name); protocol == "http/protobuf" {
			break // the first of them counts
		} else if protocol != "" {
			return false, &tracesError{fmt.Errorf("%s: %q is not usable; give http/protobuf", name, protocol)}
		}
	}
	return true, nil
}

// observers has the traces in it if there are any.
func (t *traces) observers() observers {
	if t == nil {
		return nil
	}
	return observers{t}
}

// close exports what is left.
func (t *traces) close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushPatience)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		otel.Handle(fmt.Errorf("export the last spans: %w", err))
	}
}

// SessionEnded implements verifier.Observer.
func (t *traces) SessionEnded(error) {}

// Done implements verifier.Observer. It does not wait for the collector: spans that
// exceed OTEL_BSP_MAX_QUEUE_SIZE are lost.
func (t *traces) Done(e verifier.Event) {
	m := e.Message
	ctx := propagation.TraceContext{}.Extract(context.Background(), headers(m.Message.Publishing.Headers))
	ctx, verify := t.tracer.Start(ctx, "verify", trace.WithTimestamp(e.Received), trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(
			semconv.MessagingSystemRabbitMQ, semconv.MessagingOperationTypeProcess, semconv.MessagingOperationName("verify"),
			semconv.MessagingDestinationName(readable(t.topology.Queue)), semconv.MessagingMessageID(readable(e.ID)),
			attribute.String("twoqueue.verdict", string(e.Verdict))))
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
	t.stage(ctx, "settle", e.Received, e.Judged, trace.SpanKindInternal)
	began := e.Judged
	if began.IsZero() {
		began = e.Received // set aside without a verdict
	}
	to := bridge.Target{Exchange: m.Exchange, RoutingKey: m.RoutingKey}
	switch e.Verdict {
	case verifier.DeadLettered:
		to = bridge.Target{RoutingKey: t.topology.DeadQueue()}
	case verifier.SetAside:
		to = bridge.Target{RoutingKey: t.topology.WaitingQueue()}
	case verifier.Dropped:
		to = bridge.Target{RoutingKey: t.topology.AuditQueue()}
	}
	t.stage(ctx, "forward", began, e.Safe, trace.SpanKindProducer,
		semconv.MessagingSystemRabbitMQ, semconv.MessagingOperationTypeSend, semconv.MessagingOperationName("forward"),
		semconv.MessagingDestinationName(readable(destination(to))), semconv.MessagingRabbitMQDestinationRoutingKey(readable(to.RoutingKey)),
		semconv.MessagingMessageID(readable(e.ID)))
	if e.Verdict == verifier.Forwarded {
		t.stage(ctx, "delete", e.Safe, e.Done, trace.SpanKindInternal)
	}
}

// stage makes the span of a part, if that has happened.
func (t *traces) stage(ctx context.Context, name string, began, ended time.Time, kind trace.SpanKind, about ...attribute.KeyValue) {
	if began.IsZero() || ended.IsZero() {
		return
	}
	_, span := t.tracer.Start(ctx, name, trace.WithTimestamp(began), trace.WithSpanKind(kind), trace.WithAttributes(about...))
	span.End(trace.WithTimestamp(ended))
}

// destination is a target in the words of OpenTelemetry's conventions.
func destination(t bridge.Target) string {
	switch {
	case t.Exchange == "":
		return t.RoutingKey
	case t.RoutingKey == "":
		return t.Exchange
	}
	return t.Exchange + ":" + t.RoutingKey
}

// headers are a message's, where a sender's tracing puts the trace context.
type headers amqp.Table

// Get implements propagation.TextMapCarrier.
func (h headers) Get(key string) string {
	switch value := h[key].(type) {
	case string:
		return value
	case []byte: // some clients' strings
		return string(value)
	}
	return ""
}

// Set would be for injecting, which nobody does here: the headers are the sender's.
func (h headers) Set(string, string) {}

// Keys implements propagation.TextMapCarrier.
func (h headers) Keys() []string {
	keys := make([]string, 0, len(h))
	for key := range h {
		keys = append(keys, key)
	}
	return keys
}
