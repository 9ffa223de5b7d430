package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

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

func TestThePageAnswersToThisMachineAndToNamedHosts(t *testing.T) {
	page := newStatus(&worker{stopping: make(chan struct{})}).handler([]string{"verifier.example", "10.0.0.2"})
	for host, want := range map[string]bool{
		"localhost": true, "localhost:80": true, "LOCALHOST": true, "127.0.0.1": true, "127.1.2.3:8082": true, "[::1]:80": true, "[::1]": true, "::1": true,
		"": false, ":8082": false, "0.0.0.0:80": false, "10.0.0.1": false, "example.org": false, "localhost.example.org": false, "127.0.0.1.example.org": false,
		"verifier.example": true, "Verifier.Example:8082": true, "10.0.0.2:8082": true, "a.verifier.example": false,
	} {
		request, answer := httptest.NewRequest(http.MethodGet, "/status.css", nil), httptest.NewRecorder()
		request.Host = host
		page.ServeHTTP(answer, request)
		if got := answer.Code == http.StatusOK; got != want {
			t.Errorf("%q: %d", host, answer.Code)
		}
	}
}
