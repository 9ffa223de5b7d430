package bridge

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"regexp"
	"strconv"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

// deliveryLimit is how often a quorum queue may deliver one message before the message goes to the
// dead queue. It is out of reach in normal operation, where the end of a verifier requeues
// thousands, but finite. It is always set: without it 4.x uses 20, and -1 makes 3.x drop a message
// at its first requeue (measured on 3.10).
const deliveryLimit = 1_000_000

// A Topology is the staging queue and the queues beside it.
type Topology struct {
	// Queue is the staging queue's name. Required, at most 200 bytes. A ledger whose rows carry
	// messages needs exactly one unordered staging queue: verifiers of a second queue would stage
	// rows of the first queue's senders in their own queue. If their allow-list did not permit the
	// target, they would put the message into their dead queue and delete its row. So several
	// staging queues on one ledger need senders with CarryNever.
	Queue string
	// Exchange is a direct exchange of the bridge's own, to which senders publish, such as
	// "twoqueue.stage": at most 255 bytes, and no name that begins with "amq.". Only the staging
	// queue and the ordered queues are bound to it, each with its name as the key. So a sender whose
	// login may write to this exchange alone reaches no other queue. Senders and verifiers must
	// agree on the name. No policy may give it an alternate exchange: a message for a missing queue
	// would go there, confirmed. Empty: the default exchange, whose right reaches every queue of the
	// virtual host.
	Exchange string
	// Classic declares classic queues instead of quorum queues. They are only as safe as one node,
	// and RabbitMQ confirms a message in them before an fsync (RabbitMQ's blog of 2025-01-17). If
	// the host crashes, committed messages that wait in them can be lost, except carried ones, which
	// arrive some seconds late, when a verifier has staged them from their rows. So classic queues
	// suit an application whose senders all have sender.CarryAlways and send no order keys. Only its
	// dead queue can then lose messages: it is a classic queue too, and a message in it has no row
	// any more. With up to 8 transactions at once classic queues delivered 1.1 to 1.2 times as many
	// messages a second as quorum queues, with 128 only 0.8 times (tests/bench, scenario classic).
	Classic bool
	// Audit is how many copies of the latest dropped messages (rolled back, or forwarded before)
	// the audit queue keeps. 0: no audit queue, and no copies.
	Audit int
	// OrderedShards is the number of ordered queues, for messages with an order key: at most 256. 0:
	// none, and no such message can be sent. All messages of one key are in the same queue, which
	// has one active consumer. RabbitMQ does not balance the active consumers: the verifier that
	// starts first gets all ordered queues, and the others take them over when it ends.
	//
	// One or two queues carry nearly as much as the staging queue; more carry less, as senders'
	// groups are smaller (tests/bench, scenario ordered). With more queues, an open transaction that
	// fills a verifier's room holds up fewer keys, but each queue takes memory in a verifier: a
	// message larger than the queue's share of MaxBytes is held in addition.
	//
	// Senders and verifiers must agree on the number. Change it only while the ordered queues are
	// empty and no sender publishes to them. Otherwise keys that move to another queue lose their
	// order, and messages stay behind in queues that are no longer counted.
	OrderedShards int
}

// MaxOrderedShards is the largest Topology.OrderedShards.
const MaxOrderedShards = 256

// DeadQueue is the queue for messages that can be neither forwarded nor rightly dropped.
func (t Topology) DeadQueue() string { return t.Queue + ".dead" }

// WaitingQueue is the queue for messages that do not fit into a verifier's waiting room, so that
// they delay no other message. Verifiers consume it too.
func (t Topology) WaitingQueue() string { return t.Queue + ".waiting" }

// AuditQueue is the queue for copies of messages that were dropped (rolled back, or forwarded
// before), if Audit is set.
func (t Topology) AuditQueue() string { return t.Queue + ".dropped" }

// orderedQueue returns the name of an ordered queue, counted from 0.
func (t Topology) orderedQueue(shard int) string {
	return t.Queue + ".ordered." + strconv.Itoa(shard)
}

// OrderedQueueOf returns the ordered queue of an order key, by the wire format. OrderedShards must
// be positive.
func (t Topology) OrderedQueueOf(key string) string {
	return t.orderedQueue(int(crc32.ChecksumIEEE([]byte(key)) % uint32(t.OrderedShards)))
}

// OrderedQueues returns the names of all ordered queues.
func (t Topology) OrderedQueues() []string {
	names := make([]string, t.OrderedShards)
	for shard := range names {
		names[shard] = t.orderedQueue(shard)
	}
	return names
}

// Declare creates missing queues, the exchange and its bindings, and checks the existing ones. A
// queue with other arguments stays as it is, and the error is a *QueueMismatch that names the
// argument. So Declare finds arguments that would lose committed messages (a message TTL, a length
// limit, a delivery limit that is too small). It cannot see the effect of policies. For a login
// without the right to configure the queues, existing queues suffice, and the broker's Logger gets
// a warning for each. Then x-single-active-consumer is not verified; without it an ordered queue
// keeps no order.
//
// With Exchange, the login also needs the rights to configure that exchange and to read it, and to
// write to the bound queues. Otherwise the exchange must exist, its bindings are unchecked, and a
// sender gets ErrReturned if one is missing.
//
// Declare some seconds before the first message: if RabbitMQ 3.10 is killed within moments of the
// declaration of a quorum queue, that queue may lose confirmed messages and get no leader again
// (measured; rabbitmq-server, issue 15725).
//
// Without a connection the error is ErrUnavailable, with a refused login ErrCredentials. A busy
// RabbitMQ may fail to make a quorum queue (error 541, cluster_not_formed): Declare tries three
// times. It may be called again at any time, also after a crash in the middle.
func (t Topology) Declare(ctx context.Context, broker *Broker) error {
	if t.Queue == "" {
		return errors.New("declare topology: field Queue is empty; name the staging queue")
	}
	if len(t.Queue) > 200 {
		return errors.New("declare topology: field Queue has more than 200 bytes")
	}
	if err := CheckExchange(t.Exchange); err != nil {
		return fmt.Errorf("declare topology: field Exchange %w", err)
	}
	if t.Audit < 0 || t.Audit > 1_000_000_000 {
		return errors.New("declare topology: field Audit is not between 0 and 1,000,000,000 messages")
	}
	if t.OrderedShards < 0 || t.OrderedShards > MaxOrderedShards {
		return fmt.Errorf("declare topology: field OrderedShards is not between 0 and %d", MaxOrderedShards)
	}
	// The staging queue first: if it cannot be used, nothing else is made.
	if err := declareAll(ctx, broker, t.Queues(), t); err != nil {
		return fmt.Errorf("declare topology: %w", err)
	}
	return nil
}

// DeclareQueues creates missing queues and checks the existing ones, in their order, as
// Topology.Declare does, with the same errors.
func DeclareQueues(ctx context.Context, broker *Broker, queues []Queue) error {
	return declareAll(ctx, broker, queues, Topology{})
}

// declareAll declares queues, and the exchange of t if it has one.
func declareAll(ctx context.Context, broker *Broker, queues []Queue, t Topology) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := declareOnce(ctx, broker, queues, t)
		if failed := new(amqp.Error); err != nil && (!errors.As(err, &failed) || failed.Code != amqp.InternalError) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(newBackOff()), backoff.WithMaxTries(declareTries))
	return err
}

// declareTries bounds the attempts to declare. RabbitMQ removes a new quorum queue that gets no
// leader in time, and closes the connection.
const declareTries = 3

func declareOnce(ctx context.Context, broker *Broker, queues []Queue, t Topology) error {
	conn, err := broker.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, conn.Close)()
	for _, queue := range queues {
		err := queue.Declare(conn)
		if errors.Is(err, ErrUnchecked) {
			broker.opts.Logger.Warn("queue is used as it is", "queue", queue.Name, "error", err)
		} else if err != nil {
			return err
		}
	}
	err = t.DeclareExchange(conn) // without an Exchange it does nothing
	if errors.Is(err, ErrUnchecked) {
		broker.opts.Logger.Warn("exchange is used as it is", "exchange", t.Exchange, "error", err)
		err = nil
	}
	return err
}

// A Queue is one of the queues of a Topology or of a receiver. It is durable, not exclusive, and
// not deleted automatically.
type Queue struct {
	Name      string
	Arguments amqp.Table
}

// Queues returns the queues that Declare makes, the staging queue first.
func (t Topology) Queues() []Queue {
	queues := []Queue{
		{t.Queue, t.stagingArgs()},
		{t.WaitingQueue(), t.stagingArgs()},
		{t.DeadQueue(), t.baseArgs()},
	}
	if t.Audit > 0 {
		args := t.baseArgs()
		args["x-max-length"], args["x-overflow"] = t.Audit, "drop-head"
		queues = append(queues, Queue{t.AuditQueue(), args})
	}
	for _, name := range t.OrderedQueues() {
		args := t.stagingArgs()
		args["x-single-active-consumer"] = true
		queues = append(queues, Queue{name, args})
	}
	return queues
}

// QuorumQueue returns a quorum queue with the arguments of a staging queue. The broker moves
// messages beyond the delivery limit to the queue deadTo, at least once. If deadTo is empty, the
// queue has the arguments of a dead queue: messages leave it by an ack only.
func QuorumQueue(name, deadTo string) Queue {
	args := amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": deliveryLimit}
	if deadTo != "" {
		args["x-dead-letter-exchange"] = ""
		args["x-dead-letter-routing-key"] = deadTo
		// The broker moves messages with confirms; that strategy needs reject-publish, which has no
		// effect without a length limit.
		args["x-dead-letter-strategy"] = "at-least-once"
		args["x-overflow"] = "reject-publish"
	}
	return Queue{name, args}
}

func (t Topology) baseArgs() amqp.Table {
	if t.Classic {
		return amqp.Table{"x-queue-type": "classic"}
	}
	return QuorumQueue("", "").Arguments
}

func (t Topology) stagingArgs() amqp.Table {
	if t.Classic {
		return amqp.Table{"x-queue-type": "classic", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": t.DeadQueue()}
	}
	return QuorumQueue("", t.DeadQueue()).Arguments
}

// Declare creates the queue, or checks that it exists with these arguments. If its arguments
// differ, the error is a *QueueMismatch; if they could not be compared, it wraps ErrUnchecked.
func (q Queue) Declare(conn *Connection) error {
	err := declare(conn, q.Name, q.Arguments)
	// RabbitMQ compares a consumer timeout since 4.3 only. It loses no message, and an upgrade
	// must not make verifiers refuse a queue that they have used before. The broker names another
	// difference only if the consumer timeout is equal.
	if mismatch := new(QueueMismatch); errors.As(err, &mismatch) && mismatch.Property == consumerTimeout {
		if number := current.FindStringSubmatch(mismatch.Reason); number != nil {
			args := maps.Clone(q.Arguments)
			if args[consumerTimeout], err = strconv.ParseInt(number[1], 10, 64); err == nil {
				err = declare(conn, q.Name, args)
			}
		}
	}
	if errors.Is(err, ErrUnchecked) && q.Arguments[singleActive] == true {
		return fmt.Errorf("%w; without %s it keeps no order", err, singleActive)
	}
	return err
}

const singleActive = "x-single-active-consumer"

const consumerTimeout = "x-consumer-timeout"

func declare(conn *Connection, name string, args amqp.Table) error {
	const durable, autoDelete, exclusive, noWait = true, false, false, false
	err := conn.OnChannel(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, durable, autoDelete, exclusive, noWait, args)
		return err
	})
	if amqpErr := new(amqp.Error); errors.As(err, &amqpErr) && amqpErr.Code == amqp.AccessRefused {
		return exists(conn, name, err)
	}
	return declareError(name, err)
}

// exists checks only that the queue exists, for a login without the right to configure it: the
// broker refuses that login before it compares anything.
func exists(conn *Connection, name string, refusal error) error {
	err := conn.OnChannel(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	})
	switch amqpErr := new(amqp.Error); {
	case err == nil:
		return fmt.Errorf("queue %q: %w", name, ErrUnchecked)
	case errors.As(err, &amqpErr) && amqpErr.Code == amqp.AccessRefused:
		// RabbitMQ 4.3 answers only a login with some right to the queue (measured on 4.3.6). The
		// verifier has none to the dead queue; it writes to it through the default exchange, which
		// returns unroutable messages.
		return fmt.Errorf("queue %q: %w, and may not check that the queue exists", name, ErrUnchecked)
	default:
		return fmt.Errorf("queue %q: is missing, and the login has no right to declare it: %w", name, refusal)
	}
}

// A QueueMismatch is the error for a queue that exists with wrong properties. Delete the queue when
// it is empty, or name another one.
type QueueMismatch struct {
	Queue    string
	Property string // the argument or property, such as x-message-ttl
	Reason   string // the broker's words: the wanted and the present value
}

func (e *QueueMismatch) Error() string {
	return fmt.Sprintf("queue %q exists with another %s: %s; delete the queue when it is empty, or name another one",
		e.Queue, e.Property, e.Reason)
}

// inequivalent matches RabbitMQ's answer to a declaration that differs from the existing queue,
// such as: inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received none but current
// is the value '60000' of type 'signedint'.
var inequivalent = regexp.MustCompile(`inequivalent arg '([^']*)' for queue .* in vhost .*: (received .*)$`)

// current matches the argument's present value in that answer, if it is a number.
var current = regexp.MustCompile(`current is the value '(\d+)'`)

func declareError(name string, err error) error {
	if err == nil {
		return nil
	}
	var amqpErr *amqp.Error
	if !errors.As(err, &amqpErr) {
		return fmt.Errorf("queue %q: %w: %w", name, ErrUnavailable, err)
	}
	if match := inequivalent.FindStringSubmatch(amqpErr.Reason); match != nil {
		return &QueueMismatch{Queue: name, Property: match[1], Reason: match[2]}
	}
	return fmt.Errorf("queue %q: %w", name, err)
}
