package main

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier"
)

// A name that is not UTF-8 takes no other message's spans with it.
func TestNoNameStopsTheTraces(t *testing.T) {
	spans := make(chan string, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		request := new(collector.ExportTraceServiceRequest)
		if err == nil {
			err = proto.Unmarshal(body, request)
		}
		if err != nil {
			t.Errorf("%v", err)
		}
		for _, resource := range request.GetResourceSpans() {
			for _, scope := range resource.GetScopeSpans() {
				for _, span := range scope.GetSpans() {
					spans <- span.GetName()
				}
			}
		}
	}))
	defer server.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	handler := otel.GetErrorHandler()
	defer otel.SetErrorHandler(handler)
	traces, err := newTraces(t.Context(), slog.New(slog.DiscardHandler), bridge.Topology{Queue: "q\xff"})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	strange := wire.Staged{Message: bridge.Message{Exchange: "\xff", RoutingKey: "k\xfe"}}
	for _, e := range []verifier.Event{
		{ID: "\xff", Message: strange, Verdict: verifier.Forwarded},
		{ID: "\xff", Verdict: verifier.DeadLettered, Reason: wire.DeadMalformed},
		{ID: "plain", Message: wire.Staged{Message: bridge.Message{RoutingKey: "plain"}}, Verdict: verifier.Forwarded},
	} {
		e.Received, e.Judged, e.Safe, e.Done = now, now, now, now
		traces.Done(e)
	}
	traces.close()
	if n := len(spans); n != 4+3+4 {
		t.Errorf("%d spans of 11", n)
	}
}
