package cmd_test

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// A traceCollector takes spans by OTLP over HTTP.
type traceCollector struct {
	*httptest.Server
	t testing.TB

	mu    sync.Mutex
	names map[string]string // of the services, by how often
	spans []*trace.Span
	asked int
}

func collectTraces(t *testing.T) *traceCollector {
	c := &traceCollector{t: t, names: make(map[string]string)}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *traceCollector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	content, err := io.ReadAll(r.Body)
	request := new(collector.ExportTraceServiceRequest)
	if err == nil {
		err = proto.Unmarshal(content, request)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	if err != nil || r.URL.Path != "/v1/traces" {
		c.t.Errorf("%s %s: %v", r.Method, r.URL, err)
	}
	for _, resource := range request.GetResourceSpans() {
		for _, a := range resource.GetResource().GetAttributes() {
			c.names[a.GetKey()] = a.GetValue().GetStringValue()
		}
		for _, scope := range resource.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
}

// of returns the spans of a message, by name, once all are there.
func (c *traceCollector) of(id string, names ...string) map[string]*trace.Span {
	c.t.Helper()
	var spans map[string]*trace.Span
	servertest.Eventually(c.t, "the spans "+strings.Join(names, ", ")+" of "+id, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		spans = make(map[string]*trace.Span)
		var verify *trace.Span
		for _, s := range c.spans {
			if s.GetName() == "verify" && attribute(s, "messaging.message.id") == id {
				verify = s
				spans["verify"] = s
			}
		}
		for _, s := range c.spans {
			if verify != nil && string(s.GetParentSpanId()) == string(verify.GetSpanId()) {
				spans[s.GetName()] = s
			}
		}
		for _, name := range names {
			if spans[name] == nil {
				return false
			}
		}
		return true
	})
	if len(spans) != len(names) {
		c.t.Errorf("message %s has %d spans, not %v", id, len(spans), names)
	}
	return spans
}

func attribute(s *trace.Span, key string) string {
	for _, a := range s.GetAttributes() {
		if a.GetKey() == key {
			if v, ok := a.GetValue().GetValue().(*common.AnyValue_StringValue); ok {
				return v.StringValue
			}
		}
	}
	return ""
}

// The verifier's part of a trace is in the trace that the sender began, with the times
// at which things happened.
func TestTracesGoOnFromTheSender(t *testing.T) {
	t.Parallel()
	c := collectTraces(t)
	s := stage.New(t, stage.Postgres)
	target := s.Queue("emails", nil)
	p := verify(t, s, "OTEL_EXPORTER_OTLP_ENDPOINT="+c.URL, "OTEL_BSP_SCHEDULE_DELAY=50", "OTEL_SERVICE_NAME=shop-verifier",
		"BRIDGE_UNROUTABLE=1ms", "BRIDGE_PATIENCE=1h")

	const traceID, spanID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	traced := func(m bridge.Message) bridge.Message {
		m.Publishing.Headers = amqp.Table{"traceparent": "00-" + traceID + "-" + spanID + "-01", "tracestate": "shop=cart"}
		return m
	}
	open, ids := s.Begin(traced(stage.To(target, "waits")))
	p.measure(map[string]string{"twoqueue_settles_in_flight": "1"})
	committed := uint64(time.Now().UnixNano())
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	spans := c.of(ids[0].String(), "verify", "settle", "forward", "delete")
	verify := spans["verify"]
	for name, span := range spans {
		if got := hex.EncodeToString(span.GetTraceId()); got != traceID {
			t.Errorf("%s is in trace %s", name, got)
		}
		if span.GetTraceState() != "shop=cart" {
			t.Errorf("%s has the state %q", name, span.GetTraceState())
		}
		if span.GetStartTimeUnixNano() < verify.GetStartTimeUnixNano() || span.GetEndTimeUnixNano() > verify.GetEndTimeUnixNano() ||
			span.GetEndTimeUnixNano() < span.GetStartTimeUnixNano() {
			t.Errorf("%s is not within verify", name)
		}
	}
	if got := hex.EncodeToString(verify.GetParentSpanId()); got != spanID {
		t.Errorf("verify's parent is %s", got)
	}
	if settle := spans["settle"]; settle.GetStartTimeUnixNano() > committed || settle.GetEndTimeUnixNano() < committed {
		t.Errorf("settle, from %d to %d, does not span the commit at %d", settle.GetStartTimeUnixNano(), settle.GetEndTimeUnixNano(), committed)
	}
	if spans["settle"].GetEndTimeUnixNano() != spans["forward"].GetStartTimeUnixNano() || spans["forward"].GetEndTimeUnixNano() != spans["delete"].GetStartTimeUnixNano() {
		t.Error("the parts do not follow each other")
	}
	for span, attributes := range map[*trace.Span]map[string]string{
		verify: {"messaging.system": "rabbitmq", "messaging.operation.name": "verify", "messaging.destination.name": "staging", "twoqueue.verdict": "forwarded"},
		spans["forward"]: {"messaging.system": "rabbitmq", "messaging.destination.name": target, "messaging.rabbitmq.destination.routing_key": target,
			"messaging.message.id": ids[0].String()},
	} {
		for key, want := range attributes {
			if got := attribute(span, key); got != want {
				t.Errorf("%s: %s is %q, not %q", span.GetName(), key, got, want)
			}
		}
	}
	if verify.GetKind() != trace.Span_SPAN_KIND_CONSUMER || spans["forward"].GetKind() != trace.Span_SPAN_KIND_PRODUCER {
		t.Error("the kinds of the spans are others")
	}
	if d := s.Receive(target, 1)[0]; d.Headers["traceparent"] != "00-"+traceID+"-"+spanID+"-01" {
		t.Errorf("the receiver gets %v", d.Headers)
	}

	rolledBack := s.RollBack(traced(stage.To(target, "")))[0].String()
	if got := attribute(c.of(rolledBack, "verify", "settle")["verify"], "twoqueue.verdict"); got != "dropped" {
		t.Errorf("rolled back: %s", got)
	}
	dead := s.Commit(stage.To("missing", ""))[0].String() // without a trace context
	verify = c.of(dead, "verify", "settle", "forward")["verify"]
	if attribute(verify, "twoqueue.reason") != "unroutable" || verify.GetStatus().GetCode() != trace.Status_STATUS_CODE_ERROR ||
		len(verify.GetParentSpanId()) != 0 || hex.EncodeToString(verify.GetTraceId()) == traceID {
		t.Errorf("dead-lettered: %v", verify)
	}
	notSampled := stage.To(target, "")
	notSampled.Publishing.Headers = amqp.Table{"traceparent": "00-" + traceID + "-" + spanID + "-00"}
	quiet := s.Commit(notSampled)[0].String()
	s.Receive(target, 1)
	if code := p.Stop(); code != 0 { // everything is exported by then
		t.Errorf("exit code %d", code)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, span := range c.spans {
		if attribute(span, "messaging.message.id") == quiet {
			t.Error("a message that its sender does not sample is traced")
		}
	}
	if c.names["service.name"] != "shop-verifier" {
		t.Errorf("the resource is %v", c.names)
	}
}

// A collector that is away, and a worker that must not trace.
func TestTracesHoldUpNothing(t *testing.T) {
	t.Parallel()
	c := collectTraces(t)
	s := stage.New(t, stage.SQLite)
	target := s.Queue("emails", nil)
	p := verify(t, s, "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_BSP_SCHEDULE_DELAY=10")
	s.Commit(stage.To(target, ""))
	s.Receive(target, 1)
	p.Hear("job=traces")
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, off := range []string{"OTEL_SDK_DISABLED=true", "OTEL_TRACES_EXPORTER=none"} {
		p := verify(t, s, "OTEL_EXPORTER_OTLP_ENDPOINT="+c.URL, "OTEL_BSP_SCHEDULE_DELAY=10", off)
		s.Commit(stage.To(target, ""))
		s.Receive(target, 1)
		p.Stop()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked > 0 {
		t.Error("traces are exported all the same")
	}
	refused(t, 2, "OTEL_EXPORTER_OTLP_PROTOCOL", "give http/protobuf", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_TRACES_EXPORTER=otlp",
		"BRIDGE_DATABASE_URL=sqlite:/nowhere", "BRIDGE_AMQP_URL=amqp://127.0.0.1:1/")
}
