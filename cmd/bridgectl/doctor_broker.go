package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/transit"
)

// publishPatience bounds the probe.
const publishPatience = 10 * time.Second

// examineBroker examines the broker over AMQP, and then over its management API, unless m is nil.
func (a *app) examineBroker(ctx context.Context, m *management, receivers []string) []group {
	broker, queues := &group{Name: "Broker"}, &group{Name: "Queues"}
	there, connected := a.examineAMQP(ctx, broker, queues)
	if !connected {
		return []group{*broker}
	}
	broker.check("encryption").examineTransit("BRIDGE_AMQP_URL", transit.Broker(a.config.AMQP.URL))
	if a.config.Management.URL != "" {
		broker.check("encryption of the API").examineTransit("BRIDGE_MANAGEMENT_URL", transit.HTTP(a.config.Management.URL))
	}
	a.examineAllow(broker)
	if m == nil {
		broker.check("management API").unknown("set BRIDGE_MANAGEMENT_URL, with a user that has the tag monitoring and a permission on the virtual host, even an empty one",
			"without it the doctor cannot check policies, the nodes' alarms, a cluster's state, rights, other consumers and lost messages")
		for _, queue := range a.topology().Queues() {
			examineDeclaration(queues, queue.Name, there[queue.Name].declared)
		}
	} else {
		a.examineManaged(ctx, m, broker, queues, there)
	}
	a.examineClassic(queues)
	a.examineDepths(queues, there)
	for _, name := range receivers {
		examineReceiver(ctx, queues, m, name)
		if m != nil {
			examineRetryQueues(ctx, queues, m, name)
		}
	}
	return []group{*broker, *queues}
}

// examineAllow examines BRIDGE_ALLOW in this environment. No server has the verifiers' own list.
func (a *app) examineAllow(g *group) {
	c := g.check("allow-list")
	if len(a.config.Allow) == 0 {
		c.unknown("set it to the verifiers' value", "BRIDGE_ALLOW is not set here, and only the verifiers know their own value; no verifier starts without one")
		return
	}
	c.ok("%s in BRIDGE_ALLOW here", count(len(a.config.Allow), "pattern"))
}

// examineClassic warns that classic queues may lose messages.
func (a *app) examineClassic(g *group) {
	if a.config.Classic {
		g.check("classic queues").warn("use quorum queues (BRIDGE_CLASSIC=false): README, 'A queue with other arguments'",
			"RabbitMQ does not fsync a message in a classic queue before it confirms it: a crash of its host can lose committed messages whose ledger rows hold only the ID")
	}
}

// A depth is the state of a queue that AMQP reports.
type depth struct {
	ready, consumers int
	declared         error // from declaring the queue as a verifier does
}

// examineAMQP connects, publishes a probe and looks for the queues. It returns the queues that
// exist, and whether it could connect.
func (a *app) examineAMQP(ctx context.Context, g, queues *group) (there map[string]depth, connected bool) {
	broker, err := a.broker(ctx)
	if err != nil {
		g.check("connection").failed(err)
		return nil, false
	}
	conn, err := broker.Connect(ctx)
	if err != nil {
		g.check("connection").failed(about("BRIDGE_AMQP_URL", err))
		return nil, false
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, conn.Close)()
	g.check("connection").ok("the broker accepts the login")
	product, version := conn.Server()
	judgeVersion(g, product, version)
	probe(ctx, g, broker)
	there = make(map[string]depth)
	for _, queue := range a.topology().Queues() {
		found, err := lookAt(conn, queue.Name)
		switch {
		case err == nil:
			there[queue.Name] = depth{ready: found.Messages, consumers: found.Consumers, declared: queue.Declare(conn)}
		case missing(err):
			queues.check("queue "+queue.Name).fail("create it with bridgectl topology declare, or name the right staging queue with BRIDGE_QUEUE", "it is missing")
		case refusedWith(err, amqp.ResourceLocked):
			queues.check("queue "+queue.Name).fail("delete it, or name another queue", "it is exclusive to another connection")
		default:
			queues.check("queue " + queue.Name).failed(err)
		}
	}
	if exchange := a.topology().Exchange; exchange != "" {
		examineExchange(conn, queues, exchange)
	}
	return there, true
}

// examineDeclaration adds the error that a verifier gets when it declares a queue.
func examineDeclaration(g *group, name string, declared error) {
	c := g.check("arguments of " + name)
	switch mismatch := new(bridge.QueueMismatch); {
	case declared == nil:
	case errors.As(declared, &mismatch):
		c.fail(argumentsFix, "%s differs, so a verifier refuses the queue: %s", mismatch.Property, mismatch.Reason)
	case errors.Is(declared, bridge.ErrUnchecked):
		c.warn("set BRIDGE_MANAGEMENT_URL, or give the login the right to configure the queue",
			"the doctor and verifiers cannot check them: the login has no right to configure the queue; a queue with other arguments may lose messages, an ordered queue also their order")
	default:
		c.failed(declared)
	}
}

// The first version of RabbitMQ that the bridge can use.
const (
	leastMajor, leastMinor = 3, 10 // moves dead messages with confirms (x-dead-letter-strategy)
)

func judgeVersion(g *group, product, version string) {
	c := g.check("version")
	major, minor, known := parseVersion(version)
	switch {
	case product != "RabbitMQ":
		c.warn("use RabbitMQ 3.10 or later", "the broker calls itself %q %s; this release is tested with RabbitMQ only", product, version)
	case !known:
		c.unknown("use RabbitMQ 3.10 or later", "the broker's version is not a number: %q", version)
	case major < leastMajor || major == leastMajor && minor < leastMinor:
		c.fail("use RabbitMQ 3.10 or later",
			"RabbitMQ %s is too old: messages that it dead-letters can be lost", version)
	default:
		c.ok("RabbitMQ %s", version)
	}
}

func parseVersion(text string) (major, minor int, ok bool) {
	first, rest, _ := strings.Cut(text, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, err := strconv.Atoi(first)
	if err != nil {
		return 0, 0, false
	}
	minor, err = strconv.Atoi(second)
	return major, minor, err == nil
}

// probe publishes messages to a queue that does not exist. Their return shows that the broker
// takes messages, returns and confirms.
func probe(ctx context.Context, g *group, broker *bridge.Broker) {
	c := g.check("publishing")
	ctx, cancel := context.WithTimeout(ctx, publishPatience)
	defer cancel()
	err := publishNowhere(ctx, broker)
	if errors.Is(err, bridge.ErrReturned) {
		// During an alarm the broker takes a connection's first message, and only then blocks the
		// connection (measured on 3.10).
		err = publishNowhere(ctx, broker)
	}
	switch {
	case errors.Is(err, bridge.ErrReturned):
		c.ok("the broker returns and confirms messages for a queue that does not exist, as it must")
	case err == nil:
		c.warn("disable the broker's plugin that accepts such messages", "the broker accepted a message for a queue that does not exist")
	case errors.Is(err, bridge.ErrBlocked):
		c.fail("free memory or disk on the broker's machines; the nodes' alarms say which",
			"the broker accepts no messages: an alarm is on; senders' transactions wait, unless their rows carry the messages")
	case denied(err):
		c.fail(`give the login the right to write to the default exchange: a pattern that matches "amq.default"`,
			"the login may not publish to the default exchange, so it can neither stage messages nor set them aside")
	default:
		c.failed(fmt.Errorf("publish a probe: %w", err))
	}
}

func publishNowhere(ctx context.Context, broker *bridge.Broker) error {
	id := uuid.Must(uuid.NewV7()).String()
	return broker.Publish(ctx, []bridge.Outgoing{{
		Target:     bridge.Target{RoutingKey: "bridgectl.doctor." + id},
		Publishing: amqp.Publishing{MessageId: id},
	}})
}

// examineDepths reports the ready messages and the consumers of the queues.
func (a *app) examineDepths(g *group, there map[string]depth) {
	t := a.topology()
	staging, haveStaging := there[t.Queue]
	waiting, haveWaiting := there[t.WaitingQueue()]
	verifiers := g.check("verifiers")
	if haveStaging && haveWaiting {
		switch ready := staging.ready + waiting.ready; {
		case staging.consumers == 0 && ready > 0:
			verifiers.warn("start a verifier: cmd/verifier", "no verifier consumes %s; %s there and in the waiting queue", t.Queue, readyText(ready))
		case staging.consumers == 0:
			verifiers.warn("start a verifier: cmd/verifier", "no verifier consumes %s", t.Queue)
		case waiting.consumers == 0 && waiting.ready > 0:
			verifiers.warn("see the verifiers' logs: each consumes both queues", "no verifier consumes %s; %s there", t.WaitingQueue(), readyText(waiting.ready))
		default:
			verifiers.ok("%s has %s; %s there, %d in the waiting queue", t.Queue, count(staging.consumers, "consumer"), readyText(staging.ready), waiting.ready)
		}
	}
	for _, queue := range t.OrderedQueues() {
		if ordered, ok := there[queue]; ok && ordered.consumers == 0 && (staging.consumers > 0 || ordered.ready > 0) {
			verifiers.warn("start a verifier; BRIDGE_ORDERED_SHARDS must be the same number for verifiers and senders", "no verifier consumes %s; %s there", queue, readyText(ordered.ready))
		}
	}
	if dead, ok := there[t.DeadQueue()]; ok {
		c := g.check("dead messages")
		if dead.ready > 0 {
			c.warn("look at them with bridgectl dead list, then replay or discard them", "%s in %s", readyText(dead.ready), t.DeadQueue())
		} else {
			c.ok("none are in %s", t.DeadQueue())
		}
	}
}

const (
	// lostAge is the age from which a committed row counts as lost if the queues are empty.
	lostAge = 10 * time.Minute
	// lostPause is the pause between two looks: the management API's numbers are seconds old, and
	// a verifier may delete a row after it has acked the message.
	lostPause = 6 * time.Second
)

// examineLost looks for committed rows whose messages are in no queue of the verifiers. It does
// nothing unless both servers have answered and a management API is set. Its only error is the end
// of ctx.
func (a *app) examineLost(ctx context.Context, g *group, m *management) error {
	if m == nil || a.opened.ledger == nil || a.opened.broker == nil || !a.opened.ledger.Features().Sweeps {
		return nil
	}
	c := g.check("lost messages")
	var lost int
	err := a.answered(ctx, func(ctx context.Context) (err error) {
		lost, err = a.lost(ctx, m)
		return err
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		c.unknown(fixFor(err), "%v", err)
	case lost > 0:
		c.warn("if other staging queues use this ledger, examine these too (--queue); else run bridgectl message for each ID that orphans list --older-than="+short(lostAge)+" shows; send a message that its receiver lacks again from your own data; only then sweep",
			"%s older than %s without a carried message, and no message is ready in the verifiers' queues or held: the messages were forwarded but their rows not deleted, or are in the dead queue, or are lost (a queue was purged, messages expired, or a verifier ran on a copy of the database)",
			count(lost, "committed row"), short(lostAge))
	}
	return nil
}

// lost counts the rows that both of two looks find without a message.
func (a *app) lost(ctx context.Context, m *management) (lost int, err error) {
	first, err := a.rowsWithoutMessage(ctx, m)
	if err != nil || len(first) == 0 {
		return 0, err
	}
	select {
	case <-time.After(lostPause):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	second, err := a.rowsWithoutMessage(ctx, m)
	for id := range second {
		if first[id] {
			lost++
		}
	}
	return lost, err
}

// rowsWithoutMessage returns the IDs of committed rows that carry no message and are older than
// lostAge. It returns none unless the queues of the verifiers are known to have no message.
func (a *app) rowsWithoutMessage(ctx context.Context, m *management) (map[uuid.UUID]bool, error) {
	rows, err := a.opened.ledger.Orphans(ctx, lostAge, orphansMost)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	t := a.topology()
	queues := append(t.OrderedQueues(), t.Queue, t.WaitingQueue())
	depths, err := a.depths(ctx, queues...)
	if err != nil {
		return nil, nil // reported already
	}
	for _, queue := range depths {
		if queue.Messages > 0 {
			return nil, nil
		}
	}
	if held, err := a.held(ctx, m, queues); err != nil || held == nil || *held > 0 {
		return nil, nil
	}
	ids := make(map[uuid.UUID]bool, len(rows))
	for _, row := range rows {
		ids[row.ID] = true
	}
	return ids, nil
}

func readyText(n int) string {
	if n == 1 {
		return "1 message is ready"
	}
	return fmt.Sprintf("%d messages are ready", n)
}
