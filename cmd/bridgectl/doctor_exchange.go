package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// declareFix is the fix for a missing exchange or binding.
const declareFix = "create it with bridgectl topology declare, or start a verifier whose login may declare it; BRIDGE_EXCHANGE must be the same for all senders and verifiers"

// examineExchange examines the exchange to which senders publish. It creates nothing.
func examineExchange(conn *bridge.Connection, g *group, name string) {
	c := g.check("exchange " + name)
	err := lookAtExchange(conn, name)
	switch {
	case missing(err):
		c.fail(declareFix, "it is missing: each transaction that sends a message fails")
		return
	case denied(err):
		c.unknown("give the login the right to read the exchange", "the login may not look it up")
		return
	case err != nil:
		c.failed(err)
		return
	}
	const durable, autoDelete, internal, noWait = true, false, false, false
	err = conn.OnChannel(func(ch *amqp.Channel) error { // it exists, so this only compares
		return ch.ExchangeDeclare(name, amqp.ExchangeDirect, durable, autoDelete, internal, noWait, nil)
	})
	switch {
	case refusedWith(err, amqp.PreconditionFailed):
		c.fail("delete it and run bridgectl topology declare, or name another one", "it is not a durable direct exchange, so a verifier refuses it: %v", err)
	case denied(err):
		c.unknown("check that it is a durable direct exchange", "it exists; the login may not check its type")
	case err != nil:
		c.failed(err)
	default:
		c.ok("durable and direct")
	}
}

// examineAlternate looks for a policy that gives the senders' exchange an alternate exchange. A
// verifier refuses an exchange with such an argument.
func (a *app) examineAlternate(ctx context.Context, g *group, m *management) {
	t := a.topology()
	c := g.check("policies of " + t.Exchange)
	var exchange struct {
		Policy string `json:"policy"`
	}
	if err := m.get(ctx, &exchange, "exchanges", m.vhost, t.Exchange); err != nil {
		if !errors.Is(err, errNotThere) { // reported already
			c.unanswered(err)
		}
		return
	}
	if exchange.Policy == "" {
		c.ok("none")
		return
	}
	var policy struct {
		Definition map[string]any `json:"definition"`
	}
	if err := m.get(ctx, &policy, "policies", m.vhost, exchange.Policy); err != nil {
		c.unknown("check that it sets no alternate-exchange; the doctor sees it with a user that has the tag policymaker", "the effect of policy %q is unknown: %s", exchange.Policy, err)
		return
	}
	if alternate, isSet := policy.Definition["alternate-exchange"]; isSet {
		c.fail(fmt.Sprintf("remove it from policy %q, or change its pattern so that it does not match the exchange", exchange.Policy),
			"alternate-exchange is %q: if a queue or its binding is missing, the broker confirms a message and puts it there, so its transaction commits and the message does not arrive", alternate)
		return
	}
	c.ok("policy %q does no harm", exchange.Policy)
}

// examineBindings compares the bindings of the senders' exchange with the queues that must be bound to
// it.
func (a *app) examineBindings(ctx context.Context, g *group, m *management) {
	t := a.topology()
	c := g.check("bindings of " + t.Exchange)
	var bindings []struct {
		Destination string `json:"destination"`
		Type        string `json:"destination_type"`
		Key         string `json:"routing_key"`
	}
	if err := m.get(ctx, &bindings, "exchanges", m.vhost, t.Exchange, "bindings", "source"); err != nil {
		c.unanswered(err)
		return
	}
	bound := make(map[string]bool)
	for _, b := range bindings {
		own := b.Type == "queue" && b.Key == b.Destination && slices.Contains(t.BoundQueues(), b.Destination)
		if bound[b.Destination] = bound[b.Destination] || own; !own {
			c.warn("unbind it, unless senders are meant to reach it", "%s %q is bound to it with key %q: a sender can publish there without any transaction", b.Type, b.Destination, b.Key)
		}
	}
	for _, queue := range t.BoundQueues() {
		if !bound[queue] {
			c.fail(declareFix, "queue %q is not bound with its name as key: each transaction that sends a message there fails", queue)
		}
	}
	c.okIfNoneFound("%s", count(len(bindings), "queue"))
}
