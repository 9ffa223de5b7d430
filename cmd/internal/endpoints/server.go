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

// ErrAddress: the command cannot listen on the address. Another process does, or the address is not
// this machine's.
var ErrAddress = errors.New("address not usable")

// The limits of a client. For a profile, profilePatience replaces answerPatience.
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
	err     error // after it has ended by itself
}

// Listen starts a server. It logs later failures to logger. The contexts of the requests end with
// ctx or with Close. The error wraps ErrAddress.
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

// Address returns the server's address, with the chosen port if Listen was given port 0.
func (s *Server) Address() string { return s.address }

// Wait waits until ctx or the server ends. It returns an error if the server has ended by itself.
func (s *Server) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.ended:
		return s.err
	}
}

// Close ends the server with all its connections, even in the middle of an answer.
func (s *Server) Close() {
	if s == nil {
		return
	}
	s.cancel()
	_ = s.server.Close()
	<-s.ended
}

// lines logs the HTTP server's messages about its clients. Most report that a client has gone.
type lines struct{ logger *slog.Logger }

func (l lines) Write(text []byte) (int, error) {
	l.logger.Debug("http", "text", string(text[:max(0, len(text)-1)]))
	return len(text), nil
}
