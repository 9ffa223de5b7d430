package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/program"
	"github.com/twoqueue/twoqueue/verifier"
	"github.com/twoqueue/twoqueue/verifier/otelverifier"
	"github.com/twoqueue/twoqueue/verifier/sidejob"
)

// flushPatience bounds the export of the last spans when the worker ends.
const flushPatience = 5 * time.Second

// traces exports the spans of package otelverifier.
type traces struct {
	verifier.Observer
	provider *sdk.TracerProvider
}

// newTraces returns nil unless OpenTelemetry's variables turn traces on (tracesWanted). The exporter
// reads OpenTelemetry's other variables by itself.
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
		resource.WithFromEnv()) // OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override the name above
	if err != nil {
		return nil, &tracesError{fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)}
	}
	provider := sdk.NewTracerProvider(sdk.WithBatcher(watched{exporter, job}), sdk.WithResource(about))
	logger.Info("traces are exported")
	return &traces{otelverifier.New(provider, topology), provider}, nil
}

// watched is an exporter that logs whether its exports succeed.
type watched struct {
	sdk.SpanExporter
	job *sidejob.Job
}

func (w watched) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	w.job.Report(w.SpanExporter.ExportSpans(ctx, spans))
	return nil // the job has reported it
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
			break // the first variable that is set counts
		} else if protocol != "" {
			return false, &tracesError{fmt.Errorf("%s: %q is not usable; give http/protobuf", name, protocol)}
		}
	}
	return true, nil
}

// observers returns t as the only observer, or none if t is nil.
func (t *traces) observers() verifier.Observers {
	if t == nil {
		return nil
	}
	return verifier.Observers{t}
}

// close exports the spans that have not been exported yet.
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
