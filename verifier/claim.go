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

// claimTries is the number of attempts to declare the ledger queue and consume it. Between the two
// steps the queue may be deleted together with the last consumer of another session.
const claimTries = 3

// claimPatience bounds how long a session waits for its claim. The ledger queue is on one node.
// While that node is frozen, no other node answers a declaration of the queue until the cluster
// declares the node dead, after more than a minute (measured on 3.10.8).
const claimPatience = 10 * time.Second

// A claim marks the staging queue as used by a ledger, for as long as the connection lives.
type claim struct {
	conn     *bridge.Connection
	topology bridge.Topology
	ledger   uuid.UUID
}

// connectClaimed opens the connection to consume over, and makes the claim on it. A broker that may
// have no classic queue (queue_types.classic.enabled = false) answers the declaration of the ledger
// queue with an internal error, which ends the connection. Then connectClaimed calls unclaimed and
// returns another connection.
func connectClaimed(ctx context.Context, sh *shared, unclaimed func(error)) (*bridge.Connection, error) {
	conn, err := sh.broker.Connect(ctx)
	if err != nil {
		return nil, err
	}
	// The AMQP library's channels take no context.
	defer context.AfterFunc(ctx, conn.Close)()
	made := &claim{conn, sh.opts.Topology, sh.ledger.Identity()}
	if err = made.begin(unclaimed); err == nil {
		return conn, nil
	}
	conn.Close()
	if answer := connectionEnd(err); answer == nil || answer.Code != amqp.InternalError {
		return nil, err
	}
	unclaimed(err)
	return sh.broker.Connect(ctx)
}

// connectionEnd returns the broker's words if err comes from a connection that the broker ended.
func connectionEnd(err error) *amqp.Error {
	var answer *amqp.Error
	if errors.As(err, &answer) && answer.Server && !answer.Recover {
		return answer
	}
	return nil
}

// begin makes the claim. If another ledger uses the queue, begin returns bridge.ErrOtherLedger: the
// verifiers would put each other's messages into the dead queue. Without the right to the ledger
// queue, or without its node, begin calls unclaimed, and the session goes on.
func (c *claim) begin(unclaimed func(error)) error {
	claimed := make(chan error, 1) // ends with the connection
	go func() { claimed <- c.try() }()
	patience := time.NewTimer(claimPatience)
	defer patience.Stop()
	var err error
	select {
	case err = <-claimed:
	case <-patience.C:
		err = fmt.Errorf("%w: no answer about the ledger queue within %v", bridge.ErrUnavailable, claimPatience)
		go c.late(claimed)
	}
	switch {
	case errors.Is(err, bridge.ErrOtherLedger), c.conn.Err() != nil, connectionEnd(err) != nil:
		return err
	case err != nil:
		unclaimed(err)
	}
	return nil
}

// late ends the session if a late answer names another ledger. The next session reports it.
func (c *claim) late(claimed <-chan error) {
	if err := <-claimed; errors.Is(err, bridge.ErrOtherLedger) {
		c.conn.Close()
	}
}

func (c *claim) try() (err error) {
	for range claimTries {
		if err = c.topology.ClaimLedger(c.conn, c.ledger); err == nil {
			err = c.keep()
		}
		if refusal := bridge.Refusal(err); refusal == nil || refusal.Code != amqp.NotFound {
			break
		}
	}
	return err
}

// keep consumes the ledger queue, which keeps the queue alive. The queue holds no messages;
// keep discards any that are published there.
func (c *claim) keep() error {
	ch, err := c.conn.Channel()
	if err != nil {
		return err
	}
	const autoAck, exclusive, noLocal, noWait = false, false, false, false
	if err := ch.Qos(1, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.Consume(c.topology.LedgerQueue(), "", autoAck, exclusive, noLocal, noWait, amqp.Table{})
	if err != nil {
		return err
	}
	go func() { // ends with the channel
		for d := range deliveries {
			c.conn.Received(d)
			_ = d.Ack(false)
		}
	}()
	return nil
}
