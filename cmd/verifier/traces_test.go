package main

import (
	"encoding/hex"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier"
)

// exported returns the spans of events and their resource, as a collector receives them by OTLP over
// HTTP.
func exported(t *testing.T, queue string, events ...verifier.Event) (spans []*trace.Span, resource []*common.KeyValue) {
	t.Helper()
	var mu sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		request := new(collector.ExportTraceServiceRequest)
		if err == nil {
			err = proto.Unmarshal(body, request)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", r.URL, err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, of := range request.GetResourceSpans() {
			resource = of.GetResource().GetAttributes()
			for _, scope := range of.GetScopeSpans() {
				spans = append(spans, scope.GetSpans()...)
			}
		}
	}))
	defer server.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	t.Setenv("OTEL_SERVICE_NAME", "shop-verifier")
	handler := otel.GetErrorHandler()
	defer otel.SetErrorHandler(handler)
	traces, err := newTraces(t.Context(), slog.New(slog.DiscardHandler), bridge.Topology{Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		traces.Done(e)
	}
	traces.close()
	mu.Lock()
	defer mu.Unlock()
	return spans, resource
}

func attributeOf(attributes []*common.KeyValue, key string) string {
	i := slices.IndexFunc(attributes, func(a *common.KeyValue) bool { return a.GetKey() == key })
	if i < 0 {
		return ""
	}
	return attributes[i].GetValue().GetStringValue()
}

// The verifier's spans belong to the trace that the sender began, and have the times of the events.
func TestTracesGoOnFromTheSender(t *testing.T) {
	const traceID, spanID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	message := func(traceparent string) wire.Staged {
		m := bridge.Message{RoutingKey: "emails"}
		m.Publishing.Headers = amqp.Table{"traceparent": traceparent, "tracestate": "shop=cart"}
		return wire.Staged{Message: m}
	}
	sampled := message("00-" + traceID + "-" + spanID + "-01")
	begin := time.Now().Add(-time.Hour)
	at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
	spans, resource := exported(t, "staging",
		verifier.Event{ID: "committed", Message: sampled, Verdict: verifier.Forwarded, Received: at(1), Judged: at(2), Safe: at(3), Done: at(4)},
		verifier.Event{ID: "rolled back", Message: sampled, Verdict: verifier.Dropped, Received: at(1), Judged: at(2), Done: at(4)},
		verifier.Event{ID: "dead", Verdict: verifier.DeadLettered, Reason: wire.DeadUnroutable, Received: at(1), Judged: at(2), Safe: at(3), Done: at(4)},
		verifier.Event{ID: "not sampled", Message: message("00-" + traceID + "-" + spanID + "-00"), Verdict: verifier.Forwarded, Received: at(1), Judged: at(2), Safe: at(3), Done: at(4)})
	if name := attributeOf(resource, "service.name"); name != "shop-verifier" {
		t.Errorf("the resource is %s", name)
	}
	all := make(map[string]map[string]*trace.Span) // by message and name
	ids := make(map[string]string)                 // the messages' IDs, by the ID of their span verify
	for _, s := range spans {
		if s.GetName() == "verify" {
			id := attributeOf(s.GetAttributes(), "messaging.message.id")
			ids[string(s.GetSpanId())], all[id] = id, map[string]*trace.Span{"verify": s}
		}
	}
	for _, s := range spans {
		if id, ok := ids[string(s.GetParentSpanId())]; ok {
			all[id][s.GetName()] = s
		}
	}
	if len(spans) != 4+2+3 || len(all["committed"]) != 4 || len(all["rolled back"]) != 2 || len(all["dead"]) != 3 {
		t.Fatalf("the spans are %v", all)
	}
	for name, want := range map[string][2]int{"verify": {1, 4}, "settle": {1, 2}, "forward": {2, 3}, "delete": {3, 4}} {
		s := all["committed"][name]
		if s.GetStartTimeUnixNano() != uint64(at(want[0]).UnixNano()) || s.GetEndTimeUnixNano() != uint64(at(want[1]).UnixNano()) ||
			hex.EncodeToString(s.GetTraceId()) != traceID || s.GetTraceState() != "shop=cart" {
			t.Errorf("%s is %v", name, s)
		}
	}
	verify, forward, dead := all["committed"]["verify"], all["committed"]["forward"], all["dead"]["verify"]
	if hex.EncodeToString(verify.GetParentSpanId()) != spanID || verify.GetKind() != trace.Span_SPAN_KIND_CONSUMER || forward.GetKind() != trace.Span_SPAN_KIND_PRODUCER {
		t.Errorf("verify is %v, forward is %v", verify, forward)
	}
	for s, attributes := range map[*trace.Span]map[string]string{
		verify: {"messaging.system": "rabbitmq", "messaging.operation.name": "verify", "messaging.destination.name": "staging", "twoqueue.verdict": "forwarded"},
		forward: {"messaging.system": "rabbitmq", "messaging.destination.name": "emails", "messaging.rabbitmq.destination.routing_key": "emails",
			"messaging.message.id": "committed"},
		all["rolled back"]["verify"]: {"twoqueue.verdict": "dropped"},
		dead:                         {"twoqueue.verdict": "dead_lettered", "twoqueue.reason": "unroutable"},
	} {
		for key, want := range attributes {
			if got := attributeOf(s.GetAttributes(), key); got != want {
				t.Errorf("%s: %s is %q, not %q", s.GetName(), key, got, want)
			}
		}
	}
	if dead.GetStatus().GetCode() != trace.Status_STATUS_CODE_ERROR || len(dead.GetParentSpanId()) != 0 || hex.EncodeToString(dead.GetTraceId()) == traceID {
		t.Errorf("dead-lettered, without a trace: %v", dead)
	}
}

// A name that is not UTF-8 does not prevent the export of other messages' spans.
func TestNoNameStopsTheTraces(t *testing.T) {
	now := time.Now()
	strange := wire.Staged{Message: bridge.Message{Exchange: "\xff", RoutingKey: "k\xfe"}}
	spans, _ := exported(t, "q\xff",
		verifier.Event{ID: "\xff", Message: strange, Verdict: verifier.Forwarded, Received: now, Judged: now, Safe: now, Done: now},
		verifier.Event{ID: "\xff", Verdict: verifier.DeadLettered, Reason: wire.DeadMalformed, Received: now, Judged: now, Safe: now, Done: now},
		verifier.Event{ID: "plain", Message: wire.Staged{Message: bridge.Message{RoutingKey: "plain"}}, Verdict: verifier.Forwarded, Received: now, Judged: now, Safe: now, Done: now})
	if n := len(spans); n != 4+3+4 {
		t.Errorf("%d spans of 11", n)
	}
}

func TestThereAreNoTracesUnlessConfigured(t *testing.T) {
	for name, value := range map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "", "OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "none"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
			t.Setenv(name, value)
			if traces, err := newTraces(t.Context(), slog.New(slog.DiscardHandler), bridge.Topology{Queue: "q"}); traces != nil || err != nil {
				t.Errorf("%v, %v", traces, err)
			}
		})
	}
}
