package endpoints

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"time"
)

// profilePatience bounds the time of a profile. The client chooses the time within this bound.
const profilePatience = 10 * time.Minute

// ListenProfiles starts a server for go tool pprof, at /debug/pprof/. A client that reaches it can
// slow the command down, and read the command line and the names of functions. private limits the
// clients, as probes.Private does. The server refuses a browser's requests for the page of another
// site, which would slow the command down even if that page cannot read the answer.
func ListenProfiles(ctx context.Context, address string, private func(http.Handler) http.Handler, logger *slog.Logger) (*Server, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return listen(ctx, address, private(ownPages(mux)), logger, profilePatience)
}

// ownPages refuses requests from pages of other origins, which browsers mark with Sec-Fetch-Site. A
// client without this header is not a browser, or an old one.
func ownPages(page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Sec-Fetch-Site") {
		case "", "none", "same-origin":
			page.ServeHTTP(w, r)
		default:
			http.Error(w, "profiles are not served to pages of other sites; enter the address by hand", http.StatusForbidden)
		}
	})
}
