package main

import (
	"context"
	"errors"
	"fmt"
)

// enoughDeliveries is the delivery limit that idempotency.DeclareReceiver sets by default.
const enoughDeliveries = 100

// examineReceiver examines a receiver's queue: whether the messages that the broker gives up reach
// a dead queue.
func examineReceiver(ctx context.Context, g *group, m *management, name string) {
	c := g.check("receiver's queue " + name)
	if m == nil {
		c.unknown("set BRIDGE_MANAGEMENT_URL", "AMQP does not report its arguments")
		return
	}
	q, err := m.queue(ctx, name)
	switch {
	case errors.Is(err, errNotThere):
		c.fail("let the receiver declare it", "missing: messages for it wait in the staging queue, and then go to the dead queue")
		return
	case err != nil:
		c.unanswered(err)
		return
	}
	const fix = "declare a quorum queue with x-dead-letter-exchange, x-dead-letter-routing-key, x-dead-letter-strategy at-least-once and x-overflow reject-publish, or set these by a policy"
	exchange, hasExchange := q.setting("x-dead-letter-exchange", "dead-letter-exchange")
	strategy, _ := q.setting("x-dead-letter-strategy", "dead-letter-strategy")
	switch {
	case !hasExchange:
		c.fail(fix, "it has no dead-letter exchange: a message that a receiver rejects, or that reaches the delivery limit, is lost")
	case q.Type != "quorum":
		c.warn(fix, "a %s queue dead-letters without a confirm: a message can be lost on the way to the dead queue", q.Type)
	case strategy != "at-least-once":
		c.fail(fix, "x-dead-letter-strategy is not at-least-once: a message can be lost on the way to the dead queue")
	case overflow(q) != "reject-publish" && q.EffectivePolicy["overflow"] != nil:
		c.fail("set overflow to reject-publish in "+q.policies(), "overflow is %s by %s, which prevails over x-overflow, so the broker ignores x-dead-letter-strategy: a message can be lost on the way to the dead queue",
			valueText(q.EffectivePolicy["overflow"]), q.policies())
	case overflow(q) != "reject-publish":
		c.fail(fix, "x-overflow is not reject-publish, so the broker ignores x-dead-letter-strategy: a message can be lost on the way to the dead queue")
	}
	if hasExchange && exchange == "" {
		c.examineDeadTarget(ctx, m, q)
	}
	if q.Type == "quorum" {
		const fix = "set x-delivery-limit to 100 or more; a policy may only lower it"
		limit, isSet := q.deliveryLimit()
		switch {
		case !isSet:
			c.warn(fix, "x-delivery-limit is not set: from RabbitMQ 4 on it is 20, and a message reaches it if its receivers lose their connection that often")
		case limit >= 0 && limit < enoughDeliveries:
			c.warn(fix, "the delivery limit is %s: a message reaches it if its receivers lose their connection or requeue it that often", valueText(limit))
		}
	}
	if kind, isSet := q.setting("x-delayed-retry-type", "delayed-retry-type"); isSet && kind != "disabled" && q.Arguments["x-single-active-consumer"] == true {
		c.fail("set delayed-retry-type to disabled", "delayed-retry-type is %s: messages that a receiver gives back wait, and later ones overtake them, although the queue has x-single-active-consumer to keep their order", valueText(kind))
	}
	c.okIfNoneFound("messages that the broker gives up go to a dead queue, at least once")
}

// examineDeadTarget looks for the queue to which the default exchange routes dead messages.
func (c *check) examineDeadTarget(ctx context.Context, m *management, q *managedQueue) {
	key, isSet := q.setting("x-dead-letter-routing-key", "dead-letter-routing-key")
	target := fmt.Sprint(key)
	if !isSet {
		c.warn("set x-dead-letter-routing-key to the dead queue", "it has no dead-letter routing key: dead messages are routed by their own routing key")
		return
	}
	dead, err := m.queue(ctx, target)
	switch {
	case errors.Is(err, errNotThere):
		c.fail("declare it", "its dead queue %s is missing", target)
	case err != nil:
		c.unanswered(err)
	case dead.Ready > 0:
		c.group.check("dead messages of "+q.Name).warn("look at them with bridgectl dead list --queue "+q.Name+", then replay or discard them", "%s in %s", readyText(dead.Ready), target)
	}
}

// setting returns the value of an argument, or of a policy if there is no such argument.
func (q *managedQueue) setting(argument, policy string) (value any, isSet bool) {
	if value, isSet = q.Arguments[argument]; !isSet {
		value, isSet = q.EffectivePolicy[policy]
	}
	return value, isSet
}

// deliveryLimit returns a quorum queue's delivery limit: the lower one of argument and policy. A
// negative one is no limit, so the other one counts (resolve_delivery_limit in
// rabbit_quorum_queue.erl of RabbitMQ 4.0 and 4.3; 3.10 accepts no negative policy).
func (q *managedQueue) deliveryLimit() (limit float64, isSet bool) {
	argument, hasArgument := q.Arguments["x-delivery-limit"].(float64)
	policy, hasPolicy := q.EffectivePolicy["delivery-limit"].(float64)
	switch {
	case !hasPolicy:
		return argument, hasArgument
	case !hasArgument:
		return policy, true
	case policy < 0 || argument < 0:
		return max(policy, argument), true
	default:
		return min(policy, argument), true
	}
}
