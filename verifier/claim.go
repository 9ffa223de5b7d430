package verifier

import (
	"errors"
	"fmt"
	"time"

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

// claim marks the staging queue as used by this ledger, for as long as the session lives. If
// another ledger uses it, claim returns bridge.ErrOtherLedger: the verifiers would put each other's
// messages into the dead queue. Without the right to the ledger queue, or without its node, the
// session goes on.
func (s *session) claim(unclaimed func(error)) error {
	claimed := make(chan error, 1) // ends with the connection
	go func() { claimed <- s.tryClaim() }()
	patience := time.NewTimer(claimPatience)
	defer patience.Stop()
	var err error
	select {
	case err = <-claimed:
	case <-patience.C:
		err = fmt.Errorf("%w: no answer about the ledger queue within %v", bridge.ErrUnavailable, claimPatience)
		go s.claimLate(claimed)
	}
	switch {
	case errors.Is(err, bridge.ErrOtherLedger), s.consuming.Err() != nil:
		return err
	case err != nil:
		unclaimed(err)
	}
	return nil
}

// claimLate ends the session if a late answer names another ledger. The next session reports it.
func (s *session) claimLate(claimed <-chan error) {
	if err := <-claimed; errors.Is(err, bridge.ErrOtherLedger) {
		s.consuming.Close()
	}
}

func (s *session) tryClaim() (err error) {
	for range claimTries {
		if err = s.opts.Topology.ClaimLedger(s.consuming, s.ledger.Identity()); err == nil {
			err = s.keepClaim()
		}
		if refusal := bridge.Refusal(err); refusal == nil || refusal.Code != amqp.NotFound {
			break
		}
	}
	return err
}

// keepClaim consumes the ledger queue, which keeps the queue alive. The queue holds no messages;
// keepClaim discards any that are published there.
func (s *session) keepClaim() error {
	ch, err := s.consuming.Channel()
	if err != nil {
		return err
	}
	const autoAck, exclusive, noLocal, noWait = false, false, false, false
	if err := ch.Qos(1, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.Consume(s.opts.Topology.LedgerQueue(), "", autoAck, exclusive, noLocal, noWait, amqp.Table{})
	if err != nil {
		return err
	}
	go func() { // ends with the channel
		for d := range deliveries {
			s.consuming.Received(d)
			_ = d.Ack(false)
		}
	}()
	return nil
}
