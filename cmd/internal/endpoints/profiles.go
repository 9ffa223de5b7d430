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
// names; private says who does, see Private.
func ListenProfiles(ctx context.Context, address string, private func(http.Handler) http.Handler, logger *slog.Logger) (*Server, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return listen(ctx, address, private(mux), logger, profilePatience)
}
