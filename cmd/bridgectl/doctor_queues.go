package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/inspect"
)

// role is the purpose of a queue. It decides whether messages may leave the queue by themselves.
type role int

const (
	roleStaging role = iota // the staging, waiting and ordered queues: no message may leave by itself
	roleDead                // likewise: no other queue has the message
	roleAudit               // keeps the latest copies only
)

// defaultConsumerTimeout is RabbitMQ's default of consumer_timeout.
const defaultConsumerTimeout = 30 * time.Minute

const argumentsFix = "empty the queue (README, 'A queue with other arguments'), delete it and create it again, or name another one"

// examineArguments compares a queue's arguments with the required ones. If it finds nothing wrong,
// it adds the broker's answer to the declaration, which covers all other arguments.
func examineArguments(g *group, q *managedQueue, want bridge.Queue, declared error) {
	c := g.check("arguments of " + q.Name)
	const fix = argumentsFix
	switch {
	case !q.Durable:
		c.fail(fix, "the queue is not durable: a restart of the broker deletes it")
	case q.AutoDelete:
		c.fail(fix, "the queue deletes itself with its last consumer")
	case q.Exclusive:
		c.fail(fix, "the queue is exclusive to another connection")
	}
	names := make(map[string]bool)
	for name := range want.Arguments {
		names[name] = true
	}
	for name := range q.Arguments {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		there, isThere := q.Arguments[name]
		wanted, isWanted := want.Arguments[name]
		if name == "x-queue-type" && !isThere {
			there, isThere = q.Type, true // it may come from the virtual host's default
		}
		switch {
		case isWanted && !isThere:
			c.fail(fix, "%s is not set, must be %s%s", name, wantedText(wanted), consequence(name))
		case isWanted && !sameValue(there, wanted):
			c.fail(argumentFix(name, fix), "%s is %s, must be %s%s", name, valueText(there), wantedText(wanted), consequence(name))
		case !isWanted && harmful[name] != "":
			c.fail(fix, "%s is set to %s%s", name, valueText(there), consequence(name))
		}
	}
	if !c.hasFound() && !errors.Is(declared, bridge.ErrUnchecked) {
		examineDeclaration(g, q.Name, declared)
	}
	c.okIfNoneFound("%s", q.Type)
}

// wantedText returns the required value of an argument. An empty one names the default exchange.
func wantedText(v any) string {
	if v == "" {
		return `"" (the default exchange)`
	}
	return fmt.Sprint(v)
}

func argumentFix(name, fix string) string {
	if name == "x-queue-type" {
		return fix + "; or set BRIDGE_CLASSIC to match the queue"
	}
	return fix
}

// harmful has the consequence of each argument that a queue must not have.
var harmful = map[string]string{
	"x-message-ttl":             "messages expire, and committed ones are lost",
	"x-expires":                 "an unused queue is deleted with its messages",
	"x-max-length":              "a full queue drops messages, or refuses them",
	"x-max-length-bytes":        "a full queue drops messages, or refuses them",
	"x-overflow":                "a verifier refuses the queue",
	"x-dead-letter-exchange":    "rejected messages go elsewhere",
	"x-dead-letter-routing-key": "rejected messages go elsewhere",
	"x-max-priority":            "a verifier refuses the queue",
	"x-single-active-consumer":  "only one verifier at a time gets messages",
}

// missed has the consequence of each required argument that is missing or has another value.
var missed = map[string]string{
	"x-queue-type":              "a verifier refuses the queue",
	"x-delivery-limit":          "messages that are requeued too often are dropped or go to the dead queue",
	"x-dead-letter-exchange":    "messages that the broker gives up are lost instead of going to the dead queue",
	"x-dead-letter-routing-key": "messages that the broker gives up are lost instead of going to the dead queue",
	"x-dead-letter-strategy":    "messages that the broker gives up can be lost on the way to the dead queue",
	"x-overflow":                "messages that the broker gives up can be lost on the way to the dead queue",
	"x-max-length":              "a verifier refuses the queue",
}

func consequence(name string) string {
	text := missed[name]
	if text == "" {
		text = harmful[name]
	}
	if text == "" {
		return ""
	}
	return ": " + text
}

// sameValue reports whether a value out of JSON equals one of ours.
func sameValue(there, wanted any) bool {
	number, isNumber := there.(float64)
	whole, isWhole := wanted.(int)
	if isNumber && isWhole {
		return number == float64(whole)
	}
	return fmt.Sprint(there) == fmt.Sprint(wanted)
}

// examinePolicies examines the effect of a queue's policy and operator policy, both together as
// the broker applies them.
func examinePolicies(g *group, q *managedQueue, r role, want bridge.Queue) {
	c := g.check("policies of " + q.Name)
	by := q.policies()
	fix := "remove it from " + by + ", or change its pattern so that it does not match the queue"
	policy := q.EffectivePolicy
	keeps := r != roleAudit
	drops := overflow(q) == "drop-head"
	limit, limited := policy["delivery-limit"].(float64)
	fullLevel, full := inspect.Error, ", and a full queue drops the oldest messages: committed ones "+droppedText(r)
	if !drops {
		fullLevel, full = inspect.Warning, ", and a full queue refuses messages: "+refusedText(r)
	}
	delayedLevel, delayed := inspect.Warning, ": messages that a lost session gives back wait before another verifier gets them"
	if want.Arguments["x-single-active-consumer"] == true {
		delayedLevel, delayed = inspect.Error, ": messages that a lost session gives back wait, and later messages of their order keys overtake them"
	}
	for _, row := range []struct {
		setting string
		harms   bool // this queue
		level   inspect.Level
		text    func(any) string // of its value
		harm    string
	}{
		{"message-ttl", keeps, inspect.Error, millisText, ": messages expire, and committed ones are lost"},
		{"max-length", keeps, fullLevel, valueText, full},
		{"max-length-bytes", keeps, fullLevel, valueText, full},
		{"expires", true, inspect.Error, millisText, ": an unused queue is deleted with its messages"},
		{"delivery-limit", limited && q.Type == "quorum" && sooner(limit, want.Arguments["x-delivery-limit"]), inspect.Error, valueText,
			": messages that are requeued too often " + givenUp(r)},
		{"overflow", drops && want.Arguments["x-overflow"] == "reject-publish", inspect.Error, valueText,
			", which prevails over the queue's x-overflow and turns x-dead-letter-strategy at-least-once off: messages that the broker gives up can be lost on the way to the dead queue"},
		// For this setting a queue's argument prevails over a policy.
		{"dead-letter-exchange", want.Arguments["x-dead-letter-exchange"] == nil, inspect.Warning, quotedText, ": messages that a consumer rejects go there"},
		{"delayed-retry-type", policy["delayed-retry-type"] != "disabled", delayedLevel, quotedText, delayed},
		{"federation-upstream", true, inspect.Warning, quotedText, ": messages arrive from another broker, without a check by this ledger"},
		{"federation-upstream-set", true, inspect.Warning, quotedText, ": messages arrive from another broker, without a check by this ledger"},
	} {
		if value, isSet := policy[row.setting]; isSet && row.harms {
			c.add(row.level, fix, "%s is %s%s", row.setting, row.text(value), row.harm)
		}
	}
	if by == "" {
		c.okIfNoneFound("none")
	} else {
		c.okIfNoneFound("%s does no harm", by)
	}
}

// policies names the policy and the operator policy of a queue, or is empty if it has none.
func (q *managedQueue) policies() string {
	var names []string
	for _, name := range []string{q.Policy, q.OperatorPolicy} {
		if name != "" {
			names = append(names, fmt.Sprintf("%q", name))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "policy " + strings.Join(names, " and ")
}

// valueText returns a value out of JSON as text, with all digits.
func valueText(v any) string {
	if number, ok := v.(float64); ok {
		return strconv.FormatFloat(number, 'f', -1, 64)
	}
	return fmt.Sprint(v)
}

func quotedText(v any) string { return strconv.Quote(fmt.Sprint(v)) }

// millisText returns a duration out of JSON, in milliseconds there, as text.
func millisText(v any) string {
	if ms, ok := v.(float64); ok {
		return short(time.Duration(ms) * time.Millisecond)
	}
	return fmt.Sprint(v)
}

// droppedText: the staging, waiting and ordered queues dead-letter the messages that they drop,
// without a confirm.
func droppedText(r role) string {
	if r == roleStaging {
		return "go to the dead queue instead of their target, or are lost"
	}
	return "are lost"
}

func refusedText(r role) string {
	if r == roleStaging {
		return "senders' transactions fail"
	}
	return "verifiers hold dead messages until there is room"
}

// sooner reports whether a policy's delivery limit is below ours. A negative one is no limit.
func sooner(limit float64, ours any) bool {
	own, ok := ours.(int)
	return limit >= 0 && (!ok || limit < float64(own))
}

func givenUp(r role) string {
	if r == roleStaging {
		return "go to the dead queue instead of their target"
	}
	return "are dropped"
}

// overflow returns a full queue's treatment of messages. For a classic queue the argument prevails
// over the policy. For a quorum queue the policy prevails, and every value other than
// reject-publish is drop-head (rabbit_quorum_queue.erl of RabbitMQ 3.10, 4.0 and 4.3).
func overflow(q *managedQueue) string {
	argument, policy := q.Arguments["x-overflow"], q.EffectivePolicy["overflow"]
	if q.Type == "quorum" {
		if cmp.Or(policy, argument) == "reject-publish" {
			return "reject-publish"
		}
		return "drop-head"
	}
	if text, ok := cmp.Or(argument, policy).(string); ok {
		return text
	}
	return "drop-head"
}

// longestHeld returns how long verifiers with a hand-back may hold a message: the bound that
// verifier.Options.HandBack documents. The verifier's giveBack requeues a message after one half of
// the hand-back more, and a publication on its way may take ConfirmTimeout in addition. The doctor
// does not read BRIDGE_CONFIRM_TIMEOUT and assumes the default.
func longestHeld(handBack time.Duration) time.Duration {
	const confirmTimeout = 10 * time.Second
	return handBack + max(handBack, confirmTimeout)/2 + confirmTimeout
}

// examineConsumerTimeout compares the longest time for which verifiers hold a message with the
// consumer timeout of the queues. The API does not report the timeout of the broker as a whole.
func examineConsumerTimeout(g *group, queues []*managedQueue, handBack time.Duration) {
	c := g.check("consumer timeout")
	least, where := time.Duration(0), ""
	for _, q := range queues {
		for _, value := range []any{q.Arguments["x-consumer-timeout"], q.EffectivePolicy["consumer-timeout"]} {
			if ms, ok := value.(float64); ok && (least == 0 || time.Duration(ms)*time.Millisecond < least) {
				least, where = time.Duration(ms)*time.Millisecond, q.Name
			}
		}
	}
	held := longestHeld(handBack)
	switch {
	case least > 0 && held >= least:
		c.fail(fmt.Sprintf("raise it above %s, or lower BRIDGE_HAND_BACK", short(held)),
			"it is %s on %s, and verifiers hold messages for up to %s: the broker requeues them earlier and ends the verifiers' sessions", short(least), where, short(held))
	case least > 0:
		c.ok("it is %s on %s; verifiers hold messages for up to %s", short(least), where, short(held))
	case held >= defaultConsumerTimeout:
		c.warn(fmt.Sprintf("raise consumer_timeout in rabbitmq.conf above %s, or lower BRIDGE_HAND_BACK", short(held)),
			"BRIDGE_HAND_BACK is %s, so verifiers hold messages for up to %s; unless consumer_timeout was raised, the broker requeues messages after %s and ends the verifiers' sessions", short(handBack), short(held), short(defaultConsumerTimeout))
	default:
		c.unknown("ask on the broker's machine: rabbitmqctl eval 'application:get_env(rabbit, consumer_timeout).'",
			"the broker does not report it; unless lowered it is %s, and verifiers hold messages for up to %s", short(defaultConsumerTimeout), short(held))
	}
}

// short returns a duration without the zeros at its end: 10m instead of 10m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
