package driver

import (
	"context"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
)

// Marks serves a receiver that remembers its progress with each entity or source, instead of every
// key. It has one row for each consumer and name, with a short text, the mark.
type Marks interface {
	Transactions

	// LockMark returns the mark of name, "" if there is none yet, and locks it until tx ends,
	// even if there is none. If another open transaction has locked it, LockMark waits, and
	// returns the mark left by the other. It must be the first statement of tx: a transaction that
	// has read something before may see an older state. consumer and name are 1 to 255 bytes each,
	// without a NUL byte, here and below; anything else is an error.
	LockMark(ctx context.Context, tx bridge.Tx, consumer, name string) (string, error)

	// SetMark changes the mark, which tx must have locked. mark is 1 to 255 bytes, without a NUL
	// byte. A rollback undoes the change.
	SetMark(ctx context.Context, tx bridge.Tx, consumer, name, mark string) error
}

// A Keeper also stores the messages of an entity that have come too early. The caller must have
// locked the entity's mark in the same transaction.
type Keeper interface {
	Marks

	// Keep stores a message. If a message of that version is stored already, Keep returns false and
	// changes nothing.
	Keep(ctx context.Context, tx bridge.Tx, consumer, entity string, version int64, message []byte) (bool, error)

	// CountKept returns how many messages of the entity are stored.
	CountKept(ctx context.Context, tx bridge.Tx, consumer, entity string) (int, error)

	// FirstKept returns the stored message with the lowest version; message is nil
	// if there is none.
	FirstKept(ctx context.Context, tx bridge.Tx, consumer, entity string) (version int64, message []byte, err error)

	// Unkeep deletes a stored message; a missing one is no error.
	Unkeep(ctx context.Context, tx bridge.Tx, consumer, entity string, version int64) error

	// KeptEntities returns at most limit entities with stored messages, the longest wait first. It
	// needs no locked mark.
	KeptEntities(ctx context.Context, tx bridge.Tx, consumer string, limit int) ([]KeptEntity, error)
}

// A KeptEntity is an entity with stored messages.
type KeptEntity struct {
	Entity string
	Mark   string
	First  int64         // the lowest stored version
	Kept   int           // how many messages are stored
	Age    time.Duration // since the oldest message was stored, by the database's clock, in whole seconds
}
