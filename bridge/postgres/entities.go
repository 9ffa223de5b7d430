package postgres

import (
	"context"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

var _ bridge.Keeper = (*Inbox)(nil)

var entities = tables.Entities{
	BindType: sqlx.DOLLAR,
	Now:      "now()",
	Age:      "floor(extract(epoch FROM now() - min(kept_at)))::bigint",
}

// LockMark locks the mark in tx. It waits for an open transaction that has locked it,
// for as long as tx's lock_timeout allows. In a transaction at REPEATABLE READ or
// above, a mark that was changed after the transaction's first statement is a
// serialization failure (SQLSTATE 40001): roll back and try again.
func (*Inbox) LockMark(ctx context.Context, tx bridge.Tx, consumer, name string) (string, error) {
	mark, err := entities.LockMark(ctx, tx, consumer, name)
	return mark, wrap("lock mark", err)
}

// SetMark changes the mark in tx, which has locked it.
func (*Inbox) SetMark(ctx context.Context, tx bridge.Tx, consumer, name, mark string) error {
	return wrap("set mark", entities.SetMark(ctx, tx, consumer, name, mark))
}

// Keep stores a message in tx, which has locked the entity's mark.
func (*Inbox) Keep(ctx context.Context, tx bridge.Tx, consumer, entity string, version int64, message []byte) (bool, error) {
	fresh, err := entities.Keep(ctx, tx, consumer, entity, version, message)
	return fresh, wrap("keep message", err)
}

// CountKept counts the entity's stored messages.
func (*Inbox) CountKept(ctx context.Context, tx bridge.Tx, consumer, entity string) (int, error) {
	n, err := entities.CountKept(ctx, tx, consumer, entity)
	return n, wrap("count kept messages", err)
}

// FirstKept reads the entity's stored message with the lowest version.
func (*Inbox) FirstKept(ctx context.Context, tx bridge.Tx, consumer, entity string) (int64, []byte, error) {
	version, message, err := entities.FirstKept(ctx, tx, consumer, entity)
	return version, message, wrap("read kept message", err)
}

// Unkeep deletes a stored message in tx, which has locked the entity's mark.
func (*Inbox) Unkeep(ctx context.Context, tx bridge.Tx, consumer, entity string, version int64) error {
	return wrap("delete kept message", entities.Unkeep(ctx, tx, consumer, entity, version))
}

// KeptEntities reads all that is stored for consumer, but not the messages.
func (*Inbox) KeptEntities(ctx context.Context, tx bridge.Tx, consumer string, limit int) ([]bridge.KeptEntity, error) {
	all, err := entities.KeptEntities(ctx, tx, consumer, limit)
	return all, wrap("list kept messages", err)
}
