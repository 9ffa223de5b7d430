package endpoints

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"time"
)

// profilePatience is how long a profile may take: it lasts as long as was asked for.
const profilePatience = 10 * time.Minute

// ListenProfiles starts to answer what go tool pprof asks, at /debug/pprof/. Whoever
// reaches it can slow the command down, and reads its command line and its functions'
// names; private says who does, see Private. It refuses requests that a browser makes for the
// page of another site: these need no answer to slow the command down.
func ListenProfiles(ctx context.Context, address string, private func(http.Handler) http.Handler, logger *slog.Logger) (*Server, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return listen(ctx, address, private(ownPages(mux)), logger, profilePatience)
}

// ownPages refuses requests from pages of other origins, of which browsers tell by
// Sec-Fetch-Site. Without this header the client is no browser, or an old one.
func ownPages(page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Sec-Fetch-Site") {
		case "", "none", "same-origin":
			page.ServeHTTP(w, r)
		default:
			http.Error(w, "profiles are not for the pages of other sites; enter the address by hand", http.StatusForbidden)
		}
	})
}
