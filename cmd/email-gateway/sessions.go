package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/twoqueue/twoqueue/cmd/email-gateway/internal/transport"
)

// redials returns the pauses between attempts to connect to the mail server.
func redials() *backoff.ExponentialBackOff {
	pauses := backoff.NewExponentialBackOff()
	pauses.MaxInterval = 10 * time.Second
	return pauses
}

// sessions is a bounded pool of sessions with the mail server.
type sessions struct {
	server *transport.Server
	log    *slog.Logger
	turns  chan struct{} // a token for each session in use
	idle   chan *transport.Session
	away   atomic.Bool // the last attempt to connect has failed
}

func newSessions(server *transport.Server, n int, log *slog.Logger) *sessions {
	return &sessions{server: server, log: log, turns: make(chan struct{}, n), idle: make(chan *transport.Session, n)}
}

// take waits for a turn, then connects, and retries until the mail server can be reached. It returns
// an error only if ctx ends.
func (s *sessions) take(ctx context.Context) (*transport.Session, error) {
	select {
	case s.turns <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	pauses := redials()
	for {
		session, err := s.open(ctx)
		if err == nil {
			return session, nil
		}
		pause := pauses.NextBackOff()
		s.log.Warn("mail server not available", "error", err, "retry_in", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			<-s.turns
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

var errBusy = errors.New("all sessions are in use")

// tryTake waits for a turn for at most the server's Timeout, and tries to connect once.
func (s *sessions) tryTake(ctx context.Context) (*transport.Session, error) {
	limit := time.NewTimer(s.server.Timeout)
	defer limit.Stop()
	select {
	case s.turns <- struct{}{}:
	case <-limit.C:
		return nil, fmt.Errorf("%w: %w", transport.ErrUnavailable, errBusy)
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", transport.ErrUnavailable, context.Cause(ctx))
	}
	session, err := s.open(ctx)
	if err != nil {
		<-s.turns
		return nil, err
	}
	return session, nil
}

// open returns a working session: an idle one if there is any, else a new one.
func (s *sessions) open(ctx context.Context) (*transport.Session, error) {
	for {
		select {
		case session := <-s.idle:
			if session.Ready(ctx) {
				return session, nil
			}
			continue
		default:
		}
		session, err := s.server.Connect(ctx)
		if wasAway := s.away.Swap(err != nil); wasAway && err == nil {
			s.log.Info("mail server is available again")
		}
		return session, err
	}
}

// put returns a session to the pool. open discards it if it no longer works.
func (s *sessions) put(session *transport.Session) {
	s.idle <- session // never blocks: there are at most as many sessions as turns
	<-s.turns
}

// close ends the idle sessions.
func (s *sessions) close() {
	for {
		select {
		case session := <-s.idle:
			session.Close()
		default:
			return
		}
	}
}
