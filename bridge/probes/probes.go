package probes

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// askPatience is how long a probe may take, scrapePatience a scrape.
	askPatience    = 2 * time.Second
	scrapePatience = 15 * time.Second
	// freshness is how long a probe's result is used again. Clients need no login, so without this time
	// any client could make the program query its servers at will.
	freshness = time.Second
)

// Probes are the endpoints of one program, or of a part of it.
type Probes struct {
	// Ready returns nil if the program does its work. Otherwise its error names the missing parts, in
	// words that every client may read (several by errors.Join). Its context ends after 2 s, and it
	// must return then. It is called once a second at most, one call at a time.
	Ready func(context.Context) error
	// Notes returns lines that follow the ok of /readyz: facts that do not make it fail.
	// Nil: none.
	Notes func() []string
	// Metrics gathers the metrics.
	Metrics prometheus.Gatherer
}

// Handler answers
//
//	/livez    200 and ok, as long as it can answer at all
//	/readyz   200, ok and the notes, or 503 and a line for each thing that is missing
//	/metrics  for Prometheus
func (p Probes) Handler() http.Handler {
	ready := &recent{ask: p.Ready}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := ready.get(r.Context()); err != nil {
			say(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		lines := []string{"ok"}
		if p.Notes != nil {
			lines = append(lines, p.Notes()...)
		}
		say(w, http.StatusOK, strings.Join(lines, "\n"))
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.Metrics, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4, Timeout: scrapePatience,
	}))
	return mux
}

func say(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	fmt.Fprintln(w, text)
}

// recent returns a result again while it is fresh.
type recent struct {
	ask func(context.Context) error

	mu  sync.Mutex
	at  time.Time
	err error
}

func (a *recent) get(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.at) < freshness {
		return a.err
	}
	// The context does not end with the client's: the result is for the next client too.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askPatience)
	defer cancel()
	a.err, a.at = a.ask(ctx), time.Now()
	return a.err
}
