package ops

import (
	"embed"
	"encoding/json"
	"net/http"

	"github.com/twoqueue/twoqueue/bridge/probes"
)

//go:embed page
var pageFiles embed.FS

// policy lets the page load only its own two files and its data, and keeps data of messages from
// running as a script.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

// hostsSetting names the settings for the hosts of the page.
const hostsSetting = "BRIDGE_STATUS_HOSTS, or in Options.Hosts of package ops,"

// handler serves the page to its hosts. It only reads.
func (s *status) handler() http.Handler {
	mux := http.NewServeMux()
	for path, file := range map[string]struct{ name, kind string }{
		"/{$}":        {"status.html", "text/html; charset=utf-8"},
		"/status.css": {"status.css", "text/css; charset=utf-8"},
		"/status.js":  {"status.js", "text/javascript; charset=utf-8"},
	} {
		content, err := pageFiles.ReadFile("page/" + file.name)
		if err != nil {
			panic(err) // the file is part of the program
		}
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", file.kind)
			_, _ = w.Write(content)
		})
	}
	mux.HandleFunc("GET /status.json", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.report(r.Context()))
	})
	guarded := probes.Private(mux, s.of.opts.Hosts, hostsSetting)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		guarded.ServeHTTP(w, r)
	})
}
