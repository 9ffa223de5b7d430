package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// maxKey is the longest consumer name and key, in bytes: the limit of a message
// ID in AMQP, and of the inbox.
const maxKey = 255

// errHeldTooLong is the cause with which a delivery's context ends after Options.Hold.
var errHeldTooLong = errors.New("delivery held for longer than Options.Hold")

// A Guard handles each message once for one consumer. It is safe for concurrent use, and starts
// no goroutines. In memory it keeps its counters, the position of its purge, and the failed
// attempts of up to 10,000 messages that it has handed back.
type Guard struct {
	inbox    driver.Inbox // nil for a strategy that keeps marks
	marks    driver.Marks
	consumer string
	inOrder  bool // what is handed back must not be overtaken: see HighWater
	inPlace  bool // failing messages use no retry queues
	opts     Options
	log      *slog.Logger
	count    counters
	added    chan struct{} // work for those who poll
	purge    purge
	failures failures
}

// New returns a Guard that claims keys in inbox in the name of consumer. All processes that
// share the work must use the same name. Consumers that each must see every message (two
// services with a queue each, on one database) must use different names. The name is stored
// with every key: whoever changes it forgets what was handled. It has 1 to 255 bytes of UTF-8.
// opts must say what happens to a message that cannot be handled. New asks no database. Its
// error names the argument or option that is wrong.
func New(inbox driver.Inbox, consumer string, opts *Options) (*Guard, error) {
	if inbox == nil {
		return nil, errors.New("new guard: inbox is nil")
	}
	g, err := newGuard(inbox, consumer, opts)
	if err != nil {
		return nil, fmt.Errorf("new guard: %w", err)
	}
	g.inbox = inbox
	return g, nil
}

// newGuard returns a Guard without an inbox.
func newGuard(marks driver.Marks, consumer string, opts *Options) (*Guard, error) {
	if err := checkKey(consumer); err != nil {
		return nil, fmt.Errorf("consumer name %w", err)
	}
	filled := opts.withDefaults()
	if err := filled.validate(); err != nil {
		return nil, err
	}
	return &Guard{
		marks:    marks,
		consumer: consumer,
		opts:     filled,
		log:      filled.Logger.With("consumer", consumer),
		added:    make(chan struct{}, 1),
	}, nil
}

// checkKey says why s cannot be a key in every inbox.
func checkKey(s string) error {
	switch {
	case s == "":
		return errors.New("is empty")
	case len(s) > maxKey:
		return fmt.Errorf("is %d bytes long, more than %d", len(s), maxKey)
	case !utf8.ValidString(s):
		return errors.New("is not UTF-8")
	case strings.ContainsRune(s, 0):
		return errors.New("contains a NUL byte")
	}
	return nil
}

// Handle runs fn once per key (the message ID, unless Options.Key says otherwise). fn and the
// claim of the key are in one transaction on db; Handle acks d after the commit. The inbox's
// tables must be in db.
//
// fn does its work through tx, with the context it is given. It must not commit or roll back
// tx: then the attempt fails, and after a commit the next one is a duplicate. It must not ack
// or reject d. It may run several times per delivery, each time in a fresh transaction after
// the earlier one was rolled back; only one commits. A panic in it counts as an error. fn's
// context ends Options.Drain after ctx, or with Options.Hold. Then the transaction is rolled back
// at once; Handle waits for fn to return.
//
// ctx is the receiver's: it ends when the receiver stops. Handle returns nil when the message is
// handled, a duplicate, or dead-lettered. Otherwise the error is ErrHandedBack, ErrLeftUnacked if
// ctx was cancelled or had ended before, or ErrNotAcked if only the ack failed. Handle blocks for
// the retries and pauses of this delivery, at most for Options.Hold and for as long as fn ignores
// its context. A crash at any moment loses nothing: see the package comment.
func (g *Guard) Handle(ctx context.Context, db *sql.DB, d amqp.Delivery, fn func(ctx context.Context, tx *sql.Tx) error) error {
	if db == nil || fn == nil {
		panic("idempotency: Handle needs a database and a function")
	}
	return handleIn(ctx, g, db, beginOn(db), d, func(ctx context.Context, tx *sqlTransaction) error { return fn(ctx, tx.tx) })
}

// key returns the key of d, or a refusal.
func (g *Guard) key(d amqp.Delivery) (key string, err error) {
	if wire.Unreadable(d) {
		_, err := wire.Parse(d) // says why
		return "", &refusal{fmt.Errorf("message cannot be read: %w", err)}
	}
	if g.opts.Key == nil {
		if err := checkKey(d.MessageId); err != nil {
			return "", &refusal{fmt.Errorf("message ID %w", err)}
		}
		return d.MessageId, nil
	}
	err = g.contain("Options.Key", d.MessageId, func() (err error) {
		key, err = g.opts.Key(d)
		return err
	})
	if err != nil {
		return "", &refusal{fmt.Errorf("find the message's key: %w", err)}
	}
	if err := checkKey(key); err != nil {
		return "", &refusal{fmt.Errorf("the message's key %w", err)}
	}
	return key, nil
}

// claim claims key in tx, and refuses a new one that is too old to be judged.
func (g *Guard) claim(ctx context.Context, tx bridge.Tx, key string) (bool, error) {
	keys, err := g.inbox.Claim(ctx, tx, g.consumer, []string{key})
	fresh := len(keys) == 1
	if fresh && err == nil {
		err = g.judgeAge(key)
	}
	return fresh, err
}

// pause waits, and tells whether it did so to the end.
func pause(ctx context.Context, delay time.Duration) bool {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
