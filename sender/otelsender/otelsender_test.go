package otelsender_test

import (
	"context"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/sender/otelsender"
	"github.com/twoqueue/twoqueue/sender/sendertest"
)

func send(ctx context.Context, s *sendertest.Sender, m bridge.Message) error {
	return s.InTx(ctx, s.DB, nil, func(tx *sender.Tx) error {
		_, err := tx.Send(m)
		return err
	})
}

func TestAFailedStepIsAnErrorAndTheCallersHeadersStayTheirs(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	s := sendertest.New(t, &sender.Options{Carry: sender.CarryNever, Tracer: otelsender.New(sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder)))})
	s.FailPublish(sendertest.ErrOut)
	headers := amqp.Table{"tenant": "t1"}
	if err := send(t.Context(), s, bridge.Message{RoutingKey: "\xff", Publishing: amqp.Publishing{Headers: headers}}); err == nil {
		t.Error("no error")
	}
	if len(headers) != 1 {
		t.Errorf("the caller's headers are %v", headers)
	}
	status := make(map[string]codes.Code)
	for _, span := range recorder.Ended() {
		status[span.Name()] = span.Status().Code
	}
	if len(status) != 3 || status["record"] != codes.Unset || status["stage"] != codes.Error {
		t.Errorf("the spans are %v", status)
	}
}

// Without an SDK the context of another library's span is still passed on.
func TestTheContextTravelsWithoutAnSDK(t *testing.T) {
	parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, Remote: true})
	s := sendertest.New(t, &sender.Options{Tracer: otelsender.New(nil)})
	if err := send(trace.ContextWithSpanContext(t.Context(), parent), s, bridge.Message{RoutingKey: "emails"}); err != nil {
		t.Fatal(err)
	}
	if got := s.Committed()[0].Publishing.Headers["traceparent"]; got != "00-01000000000000000000000000000000-0200000000000000-01" {
		t.Errorf("traceparent is %v", got)
	}
}
