package idempotency

import (
	"context"
	"log/slog"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Options define how a Guard retries, and where a message goes that it gives up: exactly one of
// Queues, DeadLetterExchange, DeadLetter and HandBack is required. The zero value of each other
// field means its default. New returns an error that names an invalid field.
type Options struct {
	// Key returns the key of a message, which only copies of it share, such as the number of an order.
	// A key has 1 to 255 bytes of UTF-8 without a NUL byte. If Key returns an error or an unusable
	// key, or panics, the message is dead-lettered with the reason. Default: the message ID.
	Key func(d amqp.Delivery) (string, error)

	// Retention is how long the keys of handled messages are kept, at least. It must exceed the time
	// in which a copy of a message can still come: from queues, from the dead queue, from a backup. If
	// a key contains its time (a UUIDv7 in the text form of RFC 9562, a ULID in capitals), is older
	// and is not in the inbox, its message is not handled as new, but dead-lettered with the reason
	// ErrTooOld. A copy with any other key would be handled again. At least an hour. Default 30 days;
	// negative: for ever.
	Retention time.Duration

	// Attempts is how often the handler may fail before the message is dead-lettered. An attempt that
	// the broker or the database has made fail does not count, nor one that returns RetryLater; see
	// 'Who is to blame' in the package comment. With Queues the count travels with the message.
	// Otherwise each process counts separately, and its count ends with it. Default 13; 1 means no
	// retry. If no retry can help, the handler returns backoff.Permanent(err), of
	// github.com/cenkalti/backoff/v5.
	Attempts int

	// MinDelay is the pause after the first failed attempt that is retried in place. It doubles with
	// each further one up to MaxDelay, and is varied at random by up to a half. The delivery is held
	// meanwhile. MaxDelay is also the pause before a message that can be neither handled nor
	// dead-lettered is handed back. Defaults 100 ms and 1 minute: 13 attempts take about four minutes,
	// longer than a dependency takes to restart, and less than six, the default of Hold. They occupy
	// one goroutine and one place in the prefetch: start more goroutines than messages fail at once,
	// or lower Attempts.
	MinDelay time.Duration
	MaxDelay time.Duration

	// Hold is how long a delivery may be kept, over all its attempts and pauses; then the handler's
	// context ends and the message is handed back. It must exceed the handler's longest run, and stay
	// below the broker's consumer timeout (30 minutes unless changed). After that the broker gives the
	// message to another consumer and closes the channel with all its deliveries, or on RabbitMQ 4.3
	// cancels the consumer and silently ignores a late ack. The broker's time also includes the wait
	// for a free worker: with a Consumer's default prefetch, at most three times Hold, so four times
	// Hold in all. Default 6 minutes.
	Hold time.Duration

	// Drain is how long the running attempt may go on after the context of Handle has ended. Then the
	// attempt's context ends too, and the attempt is rolled back. So at a stop a handler that takes no
	// longer can finish. The process needs more time than this to stop: Docker gives 10 s, Kubernetes
	// 30 s, unless configured otherwise. In a Consumer, ConsumerOptions.Drain counts instead. Default
	// 5 seconds; negative: not at all.
	Drain time.Duration

	// Queues are the queues that DeclareReceiver has declared. A message whose attempt failed waits in
	// one of the retry queues, and delays no other message. A message that is given up goes to the
	// dead queue. See 'Retry queues' in the package comment.
	Queues *Queues

	// DeadLetterExchange states that the queue has a dead-letter exchange and that a queue is bound to
	// it. Failed messages are then rejected, and the broker moves them there. On a queue without a
	// dead-letter exchange they would be lost. By default they may be lost on the way, too: see 'Where
	// dead-lettered messages go' in the package comment. The reason is in the log only.
	DeadLetterExchange bool

	// DeadLetter stores a failed message with the reason: in a dead queue (DeadQueue), in a table, or
	// by your own confirmed publish. If it returns nil the Guard acks the message; after an error or a
	// panic it hands the message back. The function must not ack or reject d itself. After a crash or
	// a lost ack a stored message comes again, so it may be stored twice, or be handled after all.
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
