package main

import (
	"embed"
	"encoding/json"
	"net"
	"net/http"
	"strings"
)

//go:embed page
var pageFiles embed.FS

// policy lets the page load nothing but its own two files and its data, and makes
// nothing of what comes from messages into a script.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

// handler serves the page on address. It only reads.
func (s *status) handler(address string) http.Handler {
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
	local := isLoopback(address)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		// Somebody else's site may make its own name lead to 127.0.0.1, and read the page
		// in the browser of one who may.
		if local && !isLoopback(r.Host) {
			http.Error(w, "this address answers to localhost and 127.0.0.1 only", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// isLoopback tells whether a host, with or without a port, is this machine by itself.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.Trim(address, "[]")
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
