package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/verifier"
)

// Checks of the resources that several services or several workers share.

// sharedPatience bounds examineShared.
const sharedPatience = 10 * time.Second

// examineShared examines the ledger queue and the targets, if the broker has answered before.
func (a *app) examineShared(ctx context.Context, g *group) {
	if a.opened.broker == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sharedPatience)
	defer cancel()
	conn, err := a.opened.broker.Connect(ctx)
	if err != nil {
		return // reported already
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, conn.Close)()
	if a.opened.ledger != nil {
		a.examineClaim(conn, g)
	}
	a.examineTargets(conn, g)
}

// examineClaim examines whether verifiers of another ledger consume the staging queue. It adds
// nothing if verifiers of this ledger consume it, or if no verifier does.
func (a *app) examineClaim(conn *bridge.Connection, g *group) {
	t := a.topology()
	_, err := lookAt(conn, t.LedgerQueue())
	if missing(err) {
		return // no verifier consumes; ClaimLedger would create the queue
	}
	if err == nil {
		err = t.ClaimLedger(conn, a.opened.ledger.Identity())
	}
	c := g.check("ledger of " + t.Queue)
	switch {
	case err == nil:
	case errors.Is(err, bridge.ErrOtherLedger):
		c.fail("give each database a staging queue of its own: BRIDGE_QUEUE, for its senders and its verifiers", "%s", err)
	case errors.As(err, new(*bridge.QueueMismatch)):
		c.warn("delete queue "+t.LedgerQueue()+": a verifier declares it",
			"%s: another program has declared it, so verifiers of another ledger can consume queue %s", err, t.Queue)
	case denied(err):
		c.warn("give this login, and the verifiers', the rights to configure and read the ledger queue: bridgectl grants operator, grants verifier",
			"a login without these rights neither sees verifiers of another ledger nor keeps them from queue %s: %s", t.Queue, err)
	default:
		c.warn(cmp.Or(fixFor(err), "check that the node of queue "+t.LedgerQueue()+" runs, then run the doctor again"),
			"it is unknown whether verifiers of another ledger consume queue %s: %s", t.Queue, err)
	}
}

// examineOtherQueues looks for verifiers of this ledger on other staging queues, by their ledger
// queues. Only the broker of BRIDGE_MANAGEMENT_URL is searched. A verifier does not see the messages
// of another staging queue, so it stages them again from their rows, in its own queue. The check does
// nothing unless both servers have answered and a management API is set.
//
// A restart of the broker leaves ledger queues without a consumer for a minute. AMQP, which shows
// this without delay, reaches only the queues of this virtual host.
func (a *app) examineOtherQueues(ctx context.Context, g *group, m *management) {
	if m == nil || a.opened.ledger == nil || a.opened.broker == nil || !a.opened.ledger.Features().Carries {
		return
	}
	c := g.check("other staging queues")
	queues, err := m.ledgerQueues(ctx)
	if err != nil {
		c.unknown(cmp.Or(fixOf(err), monitoringFix), "it is unknown whether verifiers of this ledger consume other staging queues: %s", err)
		return
	}
	for _, q := range queues {
		staging, ledger, ok := bridge.ReadLedgerQueue(q.Name, q.Arguments)
		if !ok || ledger != a.opened.ledger.Identity() || staging == a.topology().Queue && q.Vhost == m.vhost {
			continue
		}
		if q.Vhost == m.vhost {
			if there, err := a.depths(ctx, q.Name); missing(err) || err == nil && there[q.Name].Consumers == 0 {
				continue
			}
		}
		c.warn("let all senders and verifiers of this ledger use one staging queue; if all senders use sender.CarryNever, and no message is delayed, ignore this",
			"verifiers of queue %q in virtual host %q judge by this ledger too: they stage carried messages of the senders of queue %s in their own queue, and the verifiers of %s do the same to theirs, so messages come twice, or go to the dead queue if the allow-lists differ",
			staging, q.Vhost, a.topology().Queue, a.topology().Queue)
	}
}

// examineLimits compares the limits of connections with the number that a verifier may need. Only
// an administrator may see a user's limits.
func (a *app) examineLimits(ctx context.Context, g *group, m *management) {
	c := g.check("connection limit")
	for _, of := range []struct{ kind, name, whose string }{
		{"vhost-limits", m.vhost, "the virtual host"}, {"user-limits", m.login, "the user " + m.login},
	} {
		var limits []struct {
			Value struct {
				Connections *int `json:"max-connections"`
				Channels    *int `json:"max-channels"` // only of a user
			} `json:"value"`
		}
		if m.get(ctx, &limits, of.kind, of.name) != nil {
			continue
		}
		for _, l := range limits {
			if channels := l.Value.Channels; channels != nil && *channels >= 0 {
				examineChannels(g, *channels, of.whose, a.topology().OrderedShards)
			}
			most := l.Value.Connections
			if most == nil || *most < 0 { // no limit
				continue
			}
			const fix = "raise max-connections: at least 3 for each verifier, plus the senders' and the receivers' connections"
			switch {
			case *most <= verifier.LeastBrokerConnections:
				c.fail(fix, "%s may have %s: too few for a verifier, which needs %d, and one more for a moment when it starts",
					of.whose, count(*most, "connection"), verifier.LeastBrokerConnections)
			case *most < verifier.MostBrokerConnections:
				c.warn(fix, "%s may have %s: enough for one verifier while all targets confirm; with targets that do not confirm it opens up to %d, and delays such targets if it gets fewer",
					of.whose, count(*most, "connection"), verifier.MostBrokerConnections)
			default:
				c.ok("%s may have %s; a verifier opens %d to %d", of.whose, count(*most, "connection"),
					verifier.LeastBrokerConnections, verifier.MostBrokerConnections)
			}
		}
	}
}

// A verifier without ordered queues opens leastChannels: one to consume each of its three queues
// (bridge.Topology.LedgerQueue is one), one to forward, two to stage messages again, and one to
// publish a message alone. With targets that do not confirm it opens up to mostChannels: four to
// publish alone, four for trials of such targets, and eight that may still get confirms.
const (
	leastChannels = 3 + 1 + 2 + 1
	mostChannels  = 3 + 1 + 2 + 4 + 4 + 8
)

// examineChannels compares a limit of channels with the number that a verifier may need.
func examineChannels(g *group, limit int, whose string, shards int) {
	c := g.check("channel limit")
	least, most := leastChannels+shards, mostChannels+shards
	fix := fmt.Sprintf("raise max-channels: %d for each verifier, plus the senders' and the receivers' channels", most)
	switch {
	case limit < least:
		c.fail(fix, "%s may have %s: too few for a verifier, which needs %d; the broker ends a connection that opens one more, so the verifier does not start, or forwards nothing",
			whose, count(limit, "channel"), least)
	case limit < most:
		c.warn(fix, "%s may have %s: enough for one verifier while all targets confirm; with targets that do not confirm it opens up to %d",
			whose, count(limit, "channel"), most)
	default:
		c.ok("%s may have %s; a verifier opens %d to %d", whose, count(limit, "channel"), least, most)
	}
}

// examineTargets looks for the targets that the allow-list names without a *. Verifiers hold a
// missing target, and its messages go to the dead queue after a while.
func (a *app) examineTargets(conn *bridge.Connection, g *group) {
	c := g.check("targets")
	const fix = "declare it, or remove it from BRIDGE_ALLOW: a message for it goes to the dead queue after BRIDGE_UNROUTABLE"
	for _, allow := range a.config.Allow {
		switch {
		case strings.Contains(allow.Exchange, "*"):
		case allow.Exchange == "" && !strings.Contains(allow.RoutingKey, "*"):
			if _, err := lookAt(conn, allow.RoutingKey); missing(err) {
				c.warn(fix, "queue %q, which BRIDGE_ALLOW names, does not exist", allow.RoutingKey)
			}
		case allow.Exchange != "":
			if missing(lookAtExchange(conn, allow.Exchange)) {
				c.warn(fix, "exchange %q, which BRIDGE_ALLOW names, does not exist", allow.Exchange)
			}
		}
	}
}
