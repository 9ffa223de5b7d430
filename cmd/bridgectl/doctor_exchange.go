package main

import (
	"context"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// declareFix is the fix for a missing exchange or binding.
const declareFix = "create it with bridgectl topology declare, or start a verifier whose login may declare it; BRIDGE_EXCHANGE must be the same for all senders and verifiers"

// examineExchange examines the exchange to which senders publish. It creates nothing.
func examineExchange(conn *bridge.Connection, g *group, name string) {
	check := "exchange " + name
	const durable, autoDelete, internal, noWait = true, false, false, false
	err := onChannel(conn, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(name, amqp.ExchangeDirect, durable, autoDelete, internal, noWait, nil)
	})
	switch {
	case missing(err):
		g.fail(check, declareFix, "it is missing: each transaction that sends a message fails")
		return
	case denied(err):
		g.unknown(check, "give the login the right to read the exchange", "the login may not look it up")
		return
	case err != nil:
		g.failed(check, err)
		return
	}
	err = onChannel(conn, func(ch *amqp.Channel) error { // it exists, so this only compares
		return ch.ExchangeDeclare(name, amqp.ExchangeDirect, durable, autoDelete, internal, noWait, nil)
	})
	switch {
	case refusedWith(err, amqp.PreconditionFailed):
		g.fail(check, "delete it and run bridgectl topology declare, or name another one", "it is not a durable direct exchange, so a verifier refuses it: %v", err)
	case denied(err):
		g.unknown(check, "check that it is a durable direct exchange", "it exists; the login may not check its type")
	case err != nil:
		g.failed(check, err)
	default:
		g.ok(check, "durable and direct")
	}
}

func onChannel(conn *bridge.Connection, do func(*amqp.Channel) error) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }()
	return do(ch)
}

// examineBindings compares the bindings of the senders' exchange with the queues that must be bound to
// it.
func (a *app) examineBindings(ctx context.Context, g *group, m *management) {
	t := a.topology()
	check := "bindings of " + t.Exchange
	var bindings []struct {
		Destination string `json:"destination"`
		Type        string `json:"destination_type"`
		Key         string `json:"routing_key"`
	}
	if err := m.get(ctx, &bindings, "exchanges", m.vhost, t.Exchange, "bindings", "source"); err != nil {
		g.add(refusedLevel(err), check, monitoringFix, "%s", err)
		return
	}
	before := len(g.Findings)
	bound := make(map[string]bool)
	for _, b := range bindings {
		own := b.Type == "queue" && b.Key == b.Destination && slices.Contains(t.BoundQueues(), b.Destination)
		if bound[b.Destination] = bound[b.Destination] || own; !own {
			g.warn(check, "unbind it, unless senders are meant to reach it", "%s %q is bound to it with key %q: a sender can publish there without any transaction", b.Type, b.Destination, b.Key)
		}
	}
	for _, queue := range t.BoundQueues() {
		if !bound[queue] {
			g.fail(check, declareFix, "queue %q is not bound with its name as key: each transaction that sends a message there fails", queue)
		}
	}
	g.fineSince(before, check, "%s", count(len(bindings), "queue"))
}
