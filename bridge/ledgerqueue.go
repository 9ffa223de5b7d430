package bridge

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
)

// LedgerQueue is the name of the queue that reserves the staging queue for the verifiers of one
// ledger, see ClaimLedger. It holds no messages.
func (t Topology) LedgerQueue() string { return t.Queue + ledgerSuffix }

// ReadLedgerQueue returns the staging queue that a ledger queue reserves, and the ledger, from the
// ledger queue's name and arguments. It returns false for any other queue.
func ReadLedgerQueue(name string, arguments map[string]any) (staging string, ledger uuid.UUID, ok bool) {
	staging, named := strings.CutSuffix(name, ledgerSuffix)
	identity, _ := arguments[ledgerArgument].(string)
	ledger, err := uuid.Parse(identity)
	return staging, ledger, named && err == nil
}

// ClaimLedger declares the ledger queue with the identity of a ledger among its arguments. If the
// queue exists with another identity, verifiers of another ledger consume the staging queue, and
// the error wraps ErrOtherLedger. The queue lives while a verifier consumes it, and for a minute
// after a restart of the broker. Every other error means that this is unknown: the login lacks the
// right to configure and to read the queue, or the queue's node is down.
//
// The identity is in x-dead-letter-routing-key, an argument that RabbitMQ compares.
func (t Topology) ClaimLedger(conn *Connection, ledger uuid.UUID) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }()
	const durable, autoDelete, exclusive, noWait = true, true, false, false
	_, err = ch.QueueDeclare(t.LedgerQueue(), durable, autoDelete, exclusive, noWait, amqp.Table{
		"x-queue-type":           "classic", // a quorum queue is not deleted with its last consumer
		"x-expires":              60_000,
		"x-dead-letter-exchange": "",
		ledgerArgument:           ledger.String(),
	})
	err = declareError(t.LedgerQueue(), err)
	if mismatch := new(QueueMismatch); errors.As(err, &mismatch) && mismatch.Property == ledgerArgument {
		return fmt.Errorf("queue %q: %w: verifiers of %s consume it, this one judges by %s; give each database a staging queue of its own (BRIDGE_QUEUE, and Options.Queue of its senders)",
			t.Queue, ErrOtherLedger, otherLedger(mismatch.Reason), ledger)
	}
	return err
}

const (
	ledgerSuffix   = ".ledger"
	ledgerArgument = "x-dead-letter-routing-key"
)

var currentText = regexp.MustCompile(`current is the value '([^']*)'`)

// otherLedger returns the identity in the broker's refusal. RabbitMQ sends 255 bytes of it, which
// may end before the identity.
func otherLedger(reason string) string {
	if found := currentText.FindStringSubmatch(reason); found != nil {
		return "ledger " + found[1]
	}
	return "another ledger"
}
