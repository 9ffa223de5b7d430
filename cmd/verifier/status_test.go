package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/cmd/internal/endpoints"
	"github.com/twoqueue/twoqueue/verifier"
)

// Whatever goes through, the page keeps the last twenty and sixty seconds.
func TestTheStatusPageKeepsLittle(t *testing.T) {
	s := newStatus(&worker{stopping: make(chan struct{})})
	for i := range 1000 {
		s.Done(verifier.Event{ID: fmt.Sprint("dead ", i), Verdict: verifier.DeadLettered, Reason: "malformed", Done: time.Now()})
		s.Done(verifier.Event{ID: fmt.Sprint("dropped ", i), Verdict: verifier.Dropped})
		s.Done(verifier.Event{ID: "forwarded", Verdict: verifier.Forwarded})
		s.counted(verifier.Stats{Forwarded: int64(i * i)})
	}
	r := s.report(context.Background())
	if len(r.Dead) != lastEnds || r.Dead[0].ID != "dead 999" || r.Dead[lastEnds-1].ID != "dead 980" || r.Dead[0].Target != "" {
		t.Errorf("dead letters: %+v", r.Dead)
	}
	if len(r.Dropped) != lastEnds || r.Dropped[0].ID != "dropped 999" {
		t.Errorf("drops: %+v", r.Dropped)
	}
	if len(r.DeadByReason) != 1 || r.DeadByReason[0] != (reasonReport{"malformed", 1000}) {
		t.Errorf("by reason: %+v", r.DeadByReason)
	}
	rates := r.Verdicts[0].Rates
	if len(rates) != minute || rates[minute-1] != 999*999-998*998 || rates[0] != 940*940-939*939 {
		t.Errorf("rates: %v", rates)
	}
	if cap(s.counts) > 4*minute || cap(s.dead) > 4*lastEnds {
		t.Errorf("room for %d counts and %d dead letters", cap(s.counts), cap(s.dead))
	}
	if r.State != "starting" {
		t.Errorf("state %s", r.State)
	}
}

func TestThePageAndTheProfilesAnswerToThisMachineAndToNamedHosts(t *testing.T) {
	minimal(t)
	t.Setenv("BRIDGE_STATUS_HOSTS", "verifier.example, 10.0.0.2, 2001:0db8:0::00a1, ::ffff:10.0.0.3")
	c, err := load(false)
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{config: c, stopping: make(chan struct{})}
	page := newStatus(w).handler(w.private)
	profiles, err := endpoints.ListenProfiles(t.Context(), "127.0.0.1:0", w.private, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer profiles.Close()
	for host, want := range map[string]bool{
		"localhost": true, "localhost:80": true, "LOCALHOST": true, "127.0.0.1": true, "127.1.2.3:8082": true, "[::1]:80": true, "[::1]": true, "::1": true,
		":8082": false, "0.0.0.0:80": false, "10.0.0.1": false, "example.org": false, "localhost.example.org": false, "127.0.0.1.example.org": false,
		"verifier.example": true, "Verifier.Example:8082": true, "10.0.0.2:8082": true, "a.verifier.example": false,
		"[2001:db8::a1]:8082": true, "[2001:DB8:0:0:0:0:0:A1]": true, "[2001:db8::a2]:8082": false, "10.0.0.3": true, "[::ffff:a00:2]:8082": true,
	} {
		request, answer := httptest.NewRequest(http.MethodGet, "/status.css", nil), httptest.NewRecorder()
		request.Host = host
		page.ServeHTTP(answer, request)
		if got := answer.Code == http.StatusOK; got != want {
			t.Errorf("page, %q: %d", host, answer.Code)
		}
		if answer.Header().Get("Content-Security-Policy") == "" {
			t.Errorf("page, %q: no policy", host)
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+profiles.Address()+"/debug/pprof/cmdline", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Host, request.Close = host, true
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if got := response.StatusCode == http.StatusOK; got != want {
			t.Errorf("profiles, %q: %d", host, response.StatusCode)
		}
	}
	// One without a host is asked for by nobody's browser.
	request, answer := httptest.NewRequest(http.MethodGet, "/status.css", nil), httptest.NewRecorder()
	request.Host = ""
	if page.ServeHTTP(answer, request); answer.Code != http.StatusForbidden {
		t.Errorf("without a host: %d", answer.Code)
	}
}
