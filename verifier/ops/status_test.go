package ops

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/verifier"
)

// The page keeps the last twenty ends and sixty seconds, however many messages pass.
func TestTheStatusPageKeepsLittle(t *testing.T) {
	s := monitor(t, nil, nil).status
	for i := range 1000 {
		s.done(verifier.Event{ID: fmt.Sprint("dead ", i), Verdict: verifier.DeadLettered, Reason: "malformed", Done: time.Now()})
		s.done(verifier.Event{ID: fmt.Sprint("dropped ", i), Verdict: verifier.Dropped})
		s.done(verifier.Event{ID: "forwarded", Verdict: verifier.Forwarded})
		s.counted(verifier.Stats{Forwarded: int64(i * i)})
	}
	r := s.report(context.Background())
	if len(r.Dead) != shownFinished || r.Dead[0].ID != "dead 999" || r.Dead[shownFinished-1].ID != "dead 980" || r.Dead[0].Target != "" {
		t.Errorf("dead letters: %+v", r.Dead)
	}
	if len(r.Dropped) != shownFinished || r.Dropped[0].ID != "dropped 999" {
		t.Errorf("drops: %+v", r.Dropped)
	}
	if len(r.DeadByReason) != 1 || r.DeadByReason[0] != (reasonReport{"malformed", 1000}) {
		t.Errorf("by reason: %+v", r.DeadByReason)
	}
	rates := r.Verdicts[0].Rates
	if len(rates) != rateSeconds || rates[rateSeconds-1] != 999*999-998*998 || rates[0] != 940*940-939*939 {
		t.Errorf("rates: %v", rates)
	}
	if cap(s.counts) > 4*rateSeconds || cap(s.dead) > 4*shownFinished {
		t.Errorf("room for %d counts and %d dead letters", cap(s.counts), cap(s.dead))
	}
	if r.State != "starting" {
		t.Errorf("state %s", r.State)
	}
}

// The hosts under which the page answers, and the headers by which a browser protects it.
func TestThePageAnswersToThisMachineAndToNamedHosts(t *testing.T) {
	page := monitor(t, nil, &Options{Hosts: []string{"verifier.example", "10.0.0.2", "2001:db8::a1", "::ffff:10.0.0.3"}}).Status()
	answer := func(method, path, host string) int {
		t.Helper()
		request, answer := httptest.NewRequest(method, path, nil), httptest.NewRecorder()
		request.Host = host
		page.ServeHTTP(answer, request)
		h := answer.Header()
		if policy := h.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'; ") || strings.Contains(policy, "unsafe") || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s as %q: headers %v", method, path, host, h)
		}
		return answer.Code
	}
	for host, want := range map[string]int{
		"localhost": 200, "localhost:80": 200, "LOCALHOST": 200, "127.0.0.1": 200, "127.1.2.3:8082": 200, "[::1]:80": 200, "[::1]": 200, "::1": 200,
		":8082": 403, "0.0.0.0:80": 403, "10.0.0.1": 403, "example.org": 403, "localhost.example.org": 403, "127.0.0.1.example.org": 403,
		"verifier.example": 200, "Verifier.Example:8082": 200, "10.0.0.2:8082": 200, "a.verifier.example": 403,
		"[2001:db8::a1]:8082": 200, "[2001:DB8:0:0:0:0:0:A1]": 200, "[2001:db8::a2]:8082": 403, "10.0.0.3": 200, "[::ffff:a00:2]:8082": 200,
		"": 403, // no browser sends a request without a host
	} {
		if got := answer(http.MethodGet, "/status.css", host); got != want {
			t.Errorf("as %q: %d", host, got)
		}
	}
	for request, want := range map[[2]string]int{
		{"GET", "/"}: 200, {"HEAD", "/"}: 200, {"GET", "/status.js"}: 200, {"GET", "/status.json"}: 200,
		{"POST", "/"}: 405, {"DELETE", "/status.json"}: 405, {"GET", "/nothing"}: 404, {"GET", "/metrics"}: 404, {"GET", "/debug/pprof/"}: 404,
	} {
		if got := answer(request[0], request[1], "localhost"); got != want {
			t.Errorf("%v: %d", request, got)
		}
	}
}
