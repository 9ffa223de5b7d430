package bridge

// The headers that a verifier writes on a message in the dead queue, beside those that
// it was staged with.
const (
	HeaderDeadReason   = "x-bridge-dead-reason"   // one of DeadReasons
	HeaderDeadText     = "x-bridge-dead-text"     // the reason in words
	HeaderDeadVerdict  = "x-bridge-dead-verdict"  // Committed's text, or "unknown" if it could not be judged
	HeaderDeadAttempts = "x-bridge-dead-attempts" // how often it could not be forwarded
	HeaderDeadAt       = "x-bridge-dead-at"       // RFC 3339, UTC
)

// HeaderDroppedAt is written by a verifier on a message in the audit queue: RFC 3339,
// UTC.
const HeaderDroppedAt = "x-bridge-dropped-at"

// Why a verifier puts a message into the dead queue.
const (
	DeadMalformed  = "malformed"   // does not follow the wire format
	DeadForeign    = "foreign"     // belongs to another ledger
	DeadNotAllowed = "not-allowed" // committed, but its target is not on the allow-list
	DeadRefused    = "refused"     // committed, but the broker refused it for good
	DeadUnroutable = "unroutable"  // committed, but its target was missing for too long
	DeadSwept      = "swept"       // absent, but its row may have been removed as an orphan
)

// DeadReasons are all of them.
func DeadReasons() []string {
	return []string{DeadMalformed, DeadForeign, DeadNotAllowed, DeadRefused, DeadUnroutable, DeadSwept}
}
