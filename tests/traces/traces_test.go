package traces

import (
	"context"
	"database/sql"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/otelhandler"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/sender/otelsender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
	"github.com/twoqueue/twoqueue/verifier/otelverifier"
)

func TestMain(m *testing.M) { servertest.Main(m) }

// An HTTP request places an order, and the receiver handles it and replies. All spans form one
// trace.
func TestOneTraceFromTheRequestToTheReceiversCommit(t *testing.T) {
	s := stage.New(t, stage.Postgres)
	s.Queue("orders", nil)
	s.Queue("receipts", nil)
	if err := migrate.Inbox(t.Context(), s.DB, migrate.PostgreSQL); err != nil {
		t.Fatal(err)
	}
	if _, err := s.DB.ExecContext(t.Context(), `CREATE TABLE orders (body text)`); err != nil {
		t.Fatal(err)
	}
	recorder := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder))
	verifies := s.Verify(verifier.Options{Allow: []verifier.Allow{{Exchange: "*", RoutingKey: "*"}}, Observer: otelverifier.New(provider, s.Topology)})
	sends := s.NewSender(sender.Options{Carry: sender.CarryNever, Tracer: otelsender.New(provider)})

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, span := provider.Tracer("shop").Start(r.Context(), "POST /orders", trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		err := sends.InTx(ctx, s.DB, nil, func(tx *sender.Tx) error {
			_, err := tx.Send(bridge.Message{RoutingKey: "orders", Publishing: amqp.Publishing{
				Headers: amqp.Table{"tenant": "t1"}, Body: []byte("two apples")}})
			return err
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	defer server.Close()

	inbox, err := postgres.OpenInbox(t.Context(), s.DB)
	if err != nil {
		t.Fatal(err)
	}
	dedup, err := idempotency.New(inbox, "receiver", &idempotency.Options{HandBack: true, Logger: stage.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	handle := otelhandler.Wrap(provider, "orders", func(ctx context.Context, d amqp.Delivery) error {
		return dedup.Handle(ctx, s.DB, d, func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, `INSERT INTO orders VALUES ($1)`, d.Body); err != nil {
				return err
			}
			_, err := sends.SendTx(ctx, bridge.SQL(tx), bridge.Message{RoutingKey: "receipts"})
			return err
		})
	})
	handled := make(chan amqp.Delivery, 1)
	consumer, err := idempotency.NewConsumer(s.Broker, "orders", func(ctx context.Context, d amqp.Delivery) error {
		err := handle(ctx, d)
		handled <- d
		return err
	}, &idempotency.ConsumerOptions{Logger: stage.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- consumer.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	answer, err := http.Post(server.URL, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if answer.Body.Close(); answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status)
	}
	d := <-handled
	receipt := s.Receive("receipts", 1)[0]
	verifies.Stop() // its spans are made at its end

	spans := make(map[string][]sdk.ReadOnlySpan)
	for _, span := range recorder.Ended() {
		spans[span.Name()] = append(spans[span.Name()], span)
	}
	request := only(t, spans, "POST /orders")
	create, process, reply := only(t, spans, "create orders"), only(t, spans, "process orders"), only(t, spans, "create receipts")
	for span, parent := range map[sdk.ReadOnlySpan]sdk.ReadOnlySpan{create: request, process: create, reply: process} {
		if span.Parent().SpanID() != parent.SpanContext().SpanID() {
			t.Errorf("the parent of %s is not %s", span.Name(), parent.Name())
		}
	}
	for _, verify := range spans["verify"] {
		if parent := verify.Parent().SpanID(); parent != create.SpanContext().SpanID() && parent != reply.SpanContext().SpanID() {
			t.Error("the parent of verify is no message's")
		}
	}
	for _, step := range []string{"record", "stage", "verify", "settle", "forward", "delete"} {
		if n := len(spans[step]); n != 2 {
			t.Errorf("%d spans %s, must be one of the request and one of the receiver", n, step)
		}
	}
	for name, all := range spans {
		for _, span := range all {
			if span.SpanContext().TraceID() != request.SpanContext().TraceID() {
				t.Errorf("%s is in another trace", name)
			}
		}
	}
	if create.SpanKind() != trace.SpanKindProducer || process.SpanKind() != trace.SpanKindConsumer {
		t.Errorf("create is %s, process is %s", create.SpanKind(), process.SpanKind())
	}
	if d.Headers["tenant"] != "t1" || !names(d, create) || !names(receipt, reply) {
		t.Errorf("the headers are %v and %v", d.Headers, receipt.Headers)
	}
	if *drawing != "" {
		if err := os.WriteFile(*drawing, draw(recorder.Ended()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var n int
	if err := s.DB.QueryRowContext(t.Context(), `SELECT count(*) FROM orders`).Scan(&n); err != nil || n != 1 {
		t.Errorf("%d orders, %v", n, err)
	}
}

// names reports whether the headers of d contain a span's context.
func names(d amqp.Delivery, span sdk.ReadOnlySpan) bool {
	parent, _ := d.Headers["traceparent"].(string)
	c := span.SpanContext()
	return strings.Contains(parent, c.TraceID().String()+"-"+c.SpanID().String())
}

func only(t *testing.T, spans map[string][]sdk.ReadOnlySpan, name string) sdk.ReadOnlySpan {
	t.Helper()
	if len(spans[name]) != 1 {
		t.Fatalf("%d spans %q, must be 1: %v", len(spans[name]), name, spans)
	}
	return spans[name][0]
}
