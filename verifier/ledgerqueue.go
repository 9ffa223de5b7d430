package verifier

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

const (
	// ledgerQueueTries is the number of attempts to declare the ledger queue and consume it. Between the
	// two steps the queue may be deleted together with the last consumer of another session.
	ledgerQueueTries = 3
	// ledgerQueuePatience bounds the answers about the ledger queue, which is on one node. While that
	// node is frozen, no other node answers a declaration of the queue until the cluster declares the
	// node dead, after more than a minute (measured on 3.10.8).
	ledgerQueuePatience = 10 * time.Second
)

// A ledgerQueue marks the staging queue as used by one ledger, for as long as the connection lives.
type ledgerQueue struct {
	conn     *bridge.Connection
	topology bridge.Topology
	ledger   uuid.UUID
}

// connectClaimed opens the connection to consume over, and claims the ledger queue on it. A broker
// without classic queues (queue_types.classic.enabled = false) answers the declaration of the ledger
// queue with an internal error, which ends the connection. So after two such errors connectClaimed
// calls unclaimed and returns a connection without a claim, but only if the ledger queue does not
// exist: otherwise the error has another cause, and verifiers of another ledger may hold the queue.
func connectClaimed(ctx context.Context, r *resources, unclaimed func(error)) (*bridge.Connection, error) {
	var failed error
	for range 2 {
		conn, err := connectAnd(ctx, r, func(q *ledgerQueue) error { return q.claim(unclaimed) })
		if end := connectionEnd(err); end == nil || end.Code != amqp.InternalError {
			return conn, err
		}
		failed = err
	}
	return connectAnd(ctx, r, func(q *ledgerQueue) error {
		if !q.isMissing() {
			return failed
		}
		unclaimed(failed)
		return nil
	})
}

// connectAnd opens a connection and calls do. If do fails, it closes the connection.
func connectAnd(ctx context.Context, r *resources, do func(*ledgerQueue) error) (*bridge.Connection, error) {
	conn, err := r.broker.Connect(ctx)
	if err != nil {
		return nil, err
	}
	// The AMQP library's channels take no context.
	defer context.AfterFunc(ctx, conn.Close)()
	if err := do(&ledgerQueue{conn, r.opts.Topology, r.ledger.Identity()}); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// connectionEnd returns the broker's words if err comes from a connection that the broker ended.
func connectionEnd(err error) *amqp.Error {
	var answer *amqp.Error
	if errors.As(err, &answer) && answer.Server && !answer.Recover {
		return answer
	}
	return nil
}

// claim declares and consumes the ledger queue. If another ledger uses the staging queue, claim
// returns bridge.ErrOtherLedger: the verifiers would put each other's messages into the dead queue.
// Without the right to the ledger queue, or without its node, claim calls unclaimed and returns nil.
func (q *ledgerQueue) claim(unclaimed func(error)) error {
	claimed := make(chan error, 1) // ends with the connection
	go func() { claimed <- q.try() }()
	patience := time.NewTimer(ledgerQueuePatience)
	defer patience.Stop()
	var err error
	select {
	case err = <-claimed:
	case <-patience.C:
		err = fmt.Errorf("%w: no answer about the ledger queue within %v", bridge.ErrUnavailable, ledgerQueuePatience)
		go q.late(claimed)
	}
	switch {
	case errors.Is(err, bridge.ErrOtherLedger), q.conn.Err() != nil, connectionEnd(err) != nil:
		return err
	case err != nil:
		unclaimed(err)
	}
	return nil
}

// isMissing reports whether the broker has answered that the ledger queue does not exist.
func (q *ledgerQueue) isMissing() bool {
	err := q.conn.OnChannel(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(q.topology.LedgerQueue(), true, false, false, false, nil)
		return err
	})
	refusal := bridge.Refusal(err)
	return refusal != nil && refusal.Code == amqp.NotFound
}

// late ends the session if a late answer names another ledger. The next session reports it.
func (q *ledgerQueue) late(claimed <-chan error) {
	if err := <-claimed; errors.Is(err, bridge.ErrOtherLedger) {
		q.conn.Close()
	}
}

func (q *ledgerQueue) try() (err error) {
	for range ledgerQueueTries {
		if err = q.topology.ClaimLedger(q.conn, q.ledger); err == nil {
			err = q.consume()
		}
		if refusal := bridge.Refusal(err); refusal == nil || refusal.Code != amqp.NotFound {
			break
		}
	}
	return err
}

// consume consumes the ledger queue, which keeps the queue alive, and discards messages that are
// published there by mistake.
func (q *ledgerQueue) consume() error {
	ch, err := q.conn.Channel()
	if err != nil {
		return err
	}
	const autoAck, exclusive, noLocal, noWait = false, false, false, false
	if err := ch.Qos(1, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.Consume(q.topology.LedgerQueue(), "", autoAck, exclusive, noLocal, noWait, amqp.Table{})
	if err != nil {
		return err
	}
	go func() { // ends with the channel
		for d := range deliveries {
			q.conn.Received(d)
			_ = d.Ack(false)
		}
	}()
	return nil
}
