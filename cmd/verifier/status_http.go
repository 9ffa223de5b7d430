package main

import (
	"embed"
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/twoqueue/twoqueue/cmd/internal/transit"
)

//go:embed page
var pageFiles embed.FS

// policy lets the page load nothing but its own two files and its data, and makes
// nothing of what comes from messages into a script.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

// handler serves the page to those who ask for localhost, a loopback address or one of
// hosts. It only reads.
func (s *status) handler(hosts []string) http.Handler {
	mux := http.NewServeMux()
	for path, file := range map[string]struct{ name, kind string }{
		"/{$}":        {"status.html", "text/html; charset=utf-8"},
		"/status.css": {"status.css", "text/css; charset=utf-8"},
		"/status.js":  {"status.js", "text/javascript; charset=utf-8"},
	} {
		content, err := pageFiles.ReadFile("page/" + file.name)
		if err != nil {
			panic(err) // it is in the program
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
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		// Somebody else's site may make its own name lead here, and read the page in the
		// browser of one who may.
		if host := hostname(r.Host); !transit.Local(host) && !slices.ContainsFunc(hosts, func(h string) bool { return strings.EqualFold(h, host) }) {
			http.Error(w, "this page answers to localhost, 127.0.0.1 and the names in BRIDGE_STATUS_HOSTS only", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// hostname is a host without its port, and without the brackets of IPv6.
func hostname(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.Trim(address, "[]")
	}
	return host
}
