package idempotency

import "github.com/twoqueue/twoqueue/idempotency/internal/engine"

// Errors of the calls; test for them with errors.Is.
var (
	// ErrHandedBack: the message is in the queue again and will be delivered again. Its handling is
	// not committed, or it is unknown whether it is. The error also wraps its cause, for example
	// context.Canceled.
	ErrHandedBack = engine.ErrHandedBack

	// ErrLeftUnacked: the context of the call was cancelled, or had ended before, so the message is
	// neither acked nor requeued. Close its channel: then the broker delivers it again. (A requeued
	// message would come again at once, to a receiver that stops, and a quorum queue would dead-letter
	// or drop it at its delivery limit.) The handling is not committed, or it is unknown whether it
	// is. The error also wraps its cause, for example context.Canceled.
	ErrLeftUnacked = engine.ErrLeftUnacked

	// ErrNotAcked: the message is done, but the ack did not reach the broker, usually because
	// the channel is closed. It will be delivered again. An ack that a Consumer gathers with others
	// may get lost without this error.
	ErrNotAcked = engine.ErrNotAcked

	// ErrTooOld: the message's key is older than Options.Retention, so it is unknown whether the
	// message was handled.
	ErrTooOld = engine.ErrTooOld
)
