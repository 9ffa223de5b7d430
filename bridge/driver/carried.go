package driver

import (
	"time"

	"github.com/google/uuid"
)

// An Entry is one row that Record inserts.
type Entry struct {
	ID uuid.UUID
	// Message is the encoded message that the row carries: any bytes, 0 included, but not empty.
	// Nil: the row carries none. Every database takes 16 MiB, except a MariaDB with its default
	// max_allowed_packet, which takes somewhat less than 12 MiB (package mysql).
	Message []byte
	// Unpublished: no copy of the message goes to the staging queue, so the row's stage time is the
	// time at which it is recorded. Otherwise it is PublishedGrace later. An entry without a
	// message has no stage time.
	Unpublished bool
}

// Plain returns entries without messages.
func Plain(ids ...uuid.UUID) []Entry {
	entries := make([]Entry, len(ids))
	for i, id := range ids {
		entries[i].ID = id
	}
	return entries
}

// PublishedGrace is the time between the record of a carried message that its sender publishes
// and its stage time. (Design: a sender publishes within milliseconds of its Record.)
const PublishedGrace = time.Second

// StageAgainAfter and StageAgainWithin bound how far Claim and Touch move a stage time: at least
// and at most so far after the database's present time.
const (
	StageAgainAfter  = 10 * time.Second
	StageAgainWithin = 10 * time.Minute
)

// A DueRow is a carried row whose stage time has come.
type DueRow struct {
	ID uuid.UUID
	// RecordedAt and StageAt are instants by the database's clock.
	RecordedAt, StageAt time.Time
	// Bytes is the length of the message.
	Bytes int64
}

// Unpublished tells that no copy of the message was ever published: the sender published none,
// and nobody has claimed the row since.
func (r DueRow) Unpublished() bool { return r.StageAt.Equal(r.RecordedAt) }

// Carried is a message that a row carries.
type Carried struct {
	ID      uuid.UUID
	Message []byte
}
