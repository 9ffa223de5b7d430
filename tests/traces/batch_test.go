package traces

import (
	"context"
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/twoqueue/twoqueue/idempotency/otelhandler"
)

// The messages of a batch come from different traces, so its single span has a link to each.
func TestTheSpanOfABatchHasALinkToTheSpanOfEachMessage(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder))
	const first, second = "0af7651916cd43dd8448eb211c80319c", "1bf7651916cd43dd8448eb211c80319c"
	parent := func(id string) amqp.Delivery {
		return amqp.Delivery{Headers: amqp.Table{"traceparent": "00-" + id + "-b7ad6b7169203331-01"}}
	}
	failure := errors.New("handed back")
	err := otelhandler.WrapBatch(provider, "emails", func(ctx context.Context, ds []amqp.Delivery) error {
		if !trace.SpanContextFromContext(ctx).IsValid() || len(ds) != 3 {
			t.Errorf("%d messages in %v", len(ds), ctx)
		}
		return failure
	})(t.Context(), []amqp.Delivery{parent(first), {}, parent(second)})
	if !errors.Is(err, failure) {
		t.Errorf("the handler's error is %v", err)
	}
	spans := recorder.Ended()
	if len(spans) != 1 {
		t.Fatalf("%d spans", len(spans))
	}
	span := spans[0]
	if links := span.Links(); len(links) != 2 || links[0].SpanContext.TraceID().String() != first || links[1].SpanContext.TraceID().String() != second {
		t.Errorf("its links are %v", links)
	}
	if span.Name() != "process emails" || span.SpanKind() != trace.SpanKindConsumer || span.Status().Code != codes.Error {
		t.Errorf("the span is %q, %v, %v", span.Name(), span.SpanKind(), span.Status())
	}
}
