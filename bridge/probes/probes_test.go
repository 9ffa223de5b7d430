package probes_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twoqueue/twoqueue/bridge/probes"
)

// The program's Ready is called once a second at most, and probes get the last result meanwhile.
func TestProbesReportTheMissingPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var missing error
		var asked atomic.Int64
		handler := probes.Probes{
			Ready: func(context.Context) error {
				asked.Add(1)
				return missing
			},
			Notes:   func() []string { return []string{"targets: 1 is held"} },
			Metrics: prometheus.NewRegistry(),
		}.Handler()
		get := func(path string) (code int, text string) {
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
			return answer.Code, answer.Body.String()
		}
		for range 20 {
			if code, text := get("/readyz"); code != 200 || text != "ok\ntargets: 1 is held\n" {
				t.Fatalf("ready: %d %q", code, text)
			}
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("20 probes asked %d times", n)
		}
		missing = errors.Join(errors.New("database: away"), errors.New("session: none"))
		time.Sleep(time.Second)
		if code, text := get("/readyz"); code != 503 || text != "database: away\nsession: none\n" {
			t.Errorf("not ready: %d %q", code, text)
		}
		if code, text := get("/livez"); code != 200 || text != "ok\n" {
			t.Errorf("live: %d %q", code, text)
		}
	})
}
