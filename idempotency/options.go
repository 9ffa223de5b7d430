package idempotency

import (
	"context"
	"database/sql"
	"log/slog"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Options define how a Deduplicator retries, and where a message goes that it gives up: exactly one of
// Queues, DeadLetterExchange, DeadLetter and HandBack is required. The zero value of each other
// field means its default. New returns an error that names an invalid field.
type Options struct {
	// Key returns the key of a message, such as an order's number: all copies of the message have
	// it, and no other message. A key has 1 to 255 bytes of UTF-8 without a NUL byte. If Key returns
	// an error or an unusable key, or panics, the message is dead-lettered with the reason. Default:
	// the message ID.
	Key func(d amqp.Delivery) (string, error)

	// Retention is how long the keys of handled messages are kept, at least. It must exceed the time
	// in which a copy of a message can still come: from queues, from the dead queue, from a backup.
	// A later copy is dead-lettered with the reason ErrTooOld if its key contains its time (a UUIDv7
	// in the text form of RFC 9562, a ULID in capitals), and handled again if not. At least an hour.
	// Default 30 days; negative: for ever.
	Retention time.Duration

	// TxOptions are the options of the transactions that Handle and HandleBatch begin: the isolation
	// level, if the database's default does not fit. A serialization failure counts against no
	// message. A level that the driver refuses lets no transaction begin, so messages are handed back.
	// ReadOnly is refused. HandleIn, HandleBatchIn and HandleWithClaim panic if TxOptions is set: their
	// callers begin the transactions. Default: nil, the database's default.
	TxOptions *sql.TxOptions

	// Attempts is how often the handler may fail before the message is dead-lettered. Failures of
	// the broker and the database and the error RetryLater do not count (with an exception for lost
	// connections), and backoff.Permanent ends the attempts at once ('Failed attempts' in the package
	// comment). With Queues the count travels with the message. Otherwise each process counts for
	// itself, and its count ends with it. Default 13; 1 means no retry.
	Attempts int

	// MinDelay is the pause after the first failed attempt that is retried in place. Each further
	// pause is twice as long, up to MaxDelay, and varied at random by up to a half. A message that
	// is retried in place keeps its goroutine and its place in the prefetch: start more goroutines
	// than messages fail at once, or lower Attempts. MaxDelay is also the pause before a message
	// that can be neither handled nor dead-lettered is handed back. Defaults 100 ms and 1 minute: 13
	// attempts take about four minutes, longer than a dependency takes to restart and less than the
	// default of Hold.
	MinDelay time.Duration
	MaxDelay time.Duration

	// Hold bounds all attempts and pauses of a delivery. Then the handler's context ends and the
	// message is handed back. Hold must exceed the handler's longest run. With the wait for a free
	// worker it must stay below the broker's consumer timeout (30 minutes unless changed): with a
	// Consumer's default prefetch that is four times Hold at most. At the timeout the broker gives
	// the message to another consumer and closes the channel with all its deliveries; RabbitMQ 4.3
	// instead cancels the consumer and silently ignores a late ack. Default 6 minutes.
	Hold time.Duration

	// Drain is how long the running attempt may go on after the context of Handle has ended. Then
	// the attempt's context ends too, and the attempt is rolled back. The process needs more time
	// than Drain to stop: Docker gives 10 s, Kubernetes 30 s, unless configured otherwise. In a
	// Consumer, ConsumerOptions.Drain counts instead. Default 5 seconds; negative: not at all.
	Drain time.Duration

	// Queues are the queues that DeclareReceiver has declared. A message whose attempt failed waits in
	// one of the retry queues, and delays no other message. A message that is given up goes to the
	// dead queue. See 'Retry queues' in the package comment.
	Queues *Queues

	// DeadLetterExchange states that the queue has a dead-letter exchange and that a queue is bound to
	// it. The Deduplicator rejects failed messages, and the broker moves them there. Without such an
	// exchange they are lost, and by default they may be lost on the way too: see 'Where dead-lettered
	// messages go' in the package comment. The reason is in the log only.
	DeadLetterExchange bool

	// DeadLetter stores a failed message with the reason: in a dead queue (DeadQueue), in a table, or
	// by your own confirmed publish. If it returns nil the Deduplicator acks the message; after an
	// error or a panic it hands the message back. The function must not ack or reject d itself. After
	// a crash or a lost ack a stored message comes again, so it may be stored twice, or be handled
	// after all.
	DeadLetter func(ctx context.Context, d amqp.Delivery, reason error) error

	// HandBack hands a failed message back after MaxDelay, again and again, until a handler
	// succeeds. Before RabbitMQ 4.3 each of these deliveries counts towards the delivery limit
	// of a quorum queue, beyond which the broker dead-letters or drops the message. From 4.0 on
	// the limit is 20 unless set.
	HandBack bool

	// Logger gets a warning for each failed attempt that is tried again, and an error for each
	// panic (with its stack) and each dead-lettered message. Errors that Handle returns are not
	// logged. Default slog.Default().
	Logger *slog.Logger
}
