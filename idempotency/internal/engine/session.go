package engine

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A Session is a session of a Consumer. After Stopping has ended, none of its handlers begins
// another attempt.
type Session struct {
	Ordered  bool // a message that goes back must not be overtaken
	OneByOne bool // no message may be overtaken, whatever its key
	Stopping context.Context
}

type sessionKey struct{}

// WithSession returns the context of a session's handlers.
func WithSession(ctx context.Context, s *Session) context.Context {
	return context.WithValue(ctx, sessionKey{}, s)
}

// SessionOf returns the Consumer's session of a handler's context, or nil.
func SessionOf(ctx context.Context) *Session {
	s, _ := ctx.Value(sessionKey{}).(*Session)
	return s
}

// UntilStop returns a context that ends with ctx and, in a Consumer, as soon as the Consumer stops
// or its session ends.
func UntilStop(ctx context.Context) (_ context.Context, cancel context.CancelFunc) {
	session := SessionOf(ctx)
	if session == nil {
		return ctx, func() {}
	}
	stopping := session.Stopping
	until, end := context.WithCancelCause(ctx)
	if stopping.Err() != nil { // AfterFunc would end it a moment later
		end(context.Cause(stopping))
	}
	stop := context.AfterFunc(stopping, func() { end(context.Cause(stopping)) })
	return until, func() { stop(); end(nil) }
}

// stopped returns why UntilStop's context would have ended already, or nil.
func stopped(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if session := SessionOf(ctx); session != nil && session.Stopping.Err() != nil {
		return context.Cause(session.Stopping)
	}
	return nil
}

// Closable is a channel whose end returns its unacked messages in their order.
type Closable interface {
	Close() error
	IsClosed() bool
}

// closeChannel returns all unacked deliveries of d's channel.
func closeChannel(d amqp.Delivery) error {
	err := d.Acknowledger.(Closable).Close()
	if errors.Is(err, amqp.ErrClosed) {
		return nil
	}
	return err
}
