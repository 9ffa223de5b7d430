package endpoints

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// ErrAddress: the address cannot be listened on; another process has it, or it is not
// this machine's.
var ErrAddress = errors.New("address not usable")

// The times that a client has. An answer takes longer than patience only where it is
// meant to, as a profile does.
const (
	headerPatience = 5 * time.Second
	answerPatience = 30 * time.Second
	idlePatience   = 2 * time.Minute
	headerBytes    = 16 << 10
)

// A Server answers on one address until Close.
type Server struct {
	server  http.Server
	address string
	cancel  context.CancelFunc
	ended   chan struct{}
	err     error // once it has ended by itself
}

// Listen starts to answer. What goes wrong later goes to logger. The requests'
// contexts end with ctx or with Close. The error is ErrAddress.
func Listen(ctx context.Context, address string, handler http.Handler, logger *slog.Logger) (*Server, error) {
	return listen(ctx, address, handler, logger, answerPatience)
}

func listen(ctx context.Context, address string, handler http.Handler, logger *slog.Logger, answer time.Duration) (*Server, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAddress, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &Server{address: listener.Addr().String(), cancel: cancel, ended: make(chan struct{})}
	s.server = http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerPatience,
		ReadTimeout:       headerPatience,
		WriteTimeout:      answer,
		IdleTimeout:       idlePatience,
		MaxHeaderBytes:    headerBytes,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          log.New(lines{logger}, "", 0),
	}
	go func() {
		defer close(s.ended)
		if err := s.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			logger.Error("endpoints ended", "address", s.address, "error", err)
			s.err = err
		}
	}()
	return s, nil
}

// Address is where it listens, with the port that was chosen if 0 was asked for.
func (s *Server) Address() string { return s.address }

// Wait waits until ctx ends, or the server by itself; then it returns why.
func (s *Server) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.ended:
		return s.err
	}
}

// Close ends the server with all its connections, also in the middle of an answer.
func (s *Server) Close() {
	if s == nil {
		return
	}
	s.cancel()
	_ = s.server.Close()
	<-s.ended
}

// lines logs what the HTTP server says about its clients; mostly that one has gone.
type lines struct{ logger *slog.Logger }

func (l lines) Write(text []byte) (int, error) {
	l.logger.Debug("http", "text", string(text[:max(0, len(text)-1)]))
	return len(text), nil
}
