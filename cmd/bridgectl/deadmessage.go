package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/cmd/internal/terminal"
	"github.com/twoqueue/twoqueue/cmd/internal/variables"
)

// reasonBroker is the reason of a message that the broker itself has moved to the dead queue.
const reasonBroker = "broker"

// A deadMessage is a message in the dead queue, in the terms of the bridge's headers.
type deadMessage struct {
	ID         string     `json:"id"`     // the message ID; without one a hash of the content, see key
	Reason     string     `json:"reason"` // wire.HeaderDeadReason; without it "broker" if the broker moved the message, else ""
	Text       string     `json:"text"`
	Verdict    string     `json:"verdict"` // committed or unknown; "" for a receiver's message
	Exchange   string     `json:"exchange"`
	RoutingKey string     `json:"routing_key"`
	Attempts   int64      `json:"attempts"`
	DeadAt     *time.Time `json:"dead_at"`   // nil if no header has it
	StagedAt   *time.Time `json:"staged_at"` // likewise
	Ledger     string     `json:"ledger"`
	Members    int        `json:"members,omitempty"` // of a group that came to the dead queue whole; 0: it is no group
	Size       int        `json:"size"`              // of the body, in bytes

	delivery amqp.Delivery
	receiver string        // the queue of the receiver that it was for; "" for a verifier's dead message
	members  []wire.Staged // the staged messages in it: one, unless it is a group
	wrong    error         // why it is malformed, and so has no members
}

// readDead reads a message from the dead queue of queue. Even a malformed one can be shown.
func readDead(d amqp.Delivery, queue string) *deadMessage {
	d, unopened := wire.OpenDead(d)
	m := &deadMessage{ID: key(d), Size: len(d.Body), Verdict: "unknown", delivery: d}
	m.Reason = text(d.Headers[wire.HeaderDeadReason])
	m.Text = text(d.Headers[wire.HeaderDeadText])
	m.Ledger = text(d.Headers[wire.HeaderLedger])
	m.Exchange, m.RoutingKey = text(d.Headers[wire.HeaderExchange]), text(d.Headers[wire.HeaderRoutingKey])
	m.Attempts, _ = d.Headers[wire.HeaderDeadAttempts].(int64)
	// A verifier overwrites the verdict header. The broker does not: a message that it has moved
	// may have a verdict that the sender has made up.
	if _, moved := d.Headers["x-death"]; !moved && text(d.Headers[wire.HeaderDeadVerdict]) == driver.Committed.String() {
		m.Verdict = driver.Committed.String()
	}
	if at, err := time.Parse(time.RFC3339, text(d.Headers[wire.HeaderDeadAt])); err == nil {
		m.DeadAt = &at
	}
	if m.Reason == "" {
		m.byBroker()
	}
	m.wrong = unopened
	// The header must name queue. Another name would let its writer choose where the message goes.
	if from, ok := wire.ReceiverOf(d); ok && from == queue && unopened == nil {
		m.receiver, m.Verdict = queue, ""
	} else if unopened == nil {
		m.read()
	}
	return m
}

// byBroker reads x-death, the broker's header on a message that it has moved by itself.
func (m *deadMessage) byBroker() {
	deaths, _ := m.delivery.Headers["x-death"].([]any)
	if len(deaths) == 0 {
		return
	}
	last, _ := deaths[0].(amqp.Table) // the latest death comes first
	m.Reason = reasonBroker
	m.Text = fmt.Sprintf("moved by the broker from queue %q: %s", text(last["queue"]), text(last["reason"]))
	if at, ok := last["time"].(time.Time); ok {
		m.DeadAt = &at
	}
}

// read parses the message, or each member of a group, as a verifier does.
func (m *deadMessage) read() {
	members, err := wire.Members(m.delivery)
	if err != nil {
		m.wrong = err
		return
	}
	for _, member := range members {
		staged, err := wire.Parse(member)
		if err != nil {
			m.members, m.wrong = nil, err
			return
		}
		m.members = append(m.members, staged)
	}
	if _, group := m.delivery.Headers[wire.HeaderGroup]; group {
		m.Members = len(members)
	}
	if at := m.members[0].StagedAt; !at.IsZero() {
		m.StagedAt = &at
	}
}

func (m *deadMessage) target() string {
	switch {
	case m.Members > 0:
		return fmt.Sprintf("group of %d", m.Members)
	case m.Exchange == "" && m.RoutingKey == "":
		return "-" // no readable target
	}
	return targetText(m.Exchange, m.RoutingKey)
}

// has reports whether id names the message or, if it is a group, one of its members.
func (m *deadMessage) has(id string) bool {
	if strings.EqualFold(m.ID, id) {
		return true
	}
	for _, member := range m.members {
		if strings.EqualFold(member.ID.String(), id) {
			return true
		}
	}
	return false
}

// key names a message for the user: by its ID or, if it has none that can be typed, by a hash of
// ID and body.
func key(d amqp.Delivery) string {
	if id := d.MessageId; id != "" && terminal.Plain(id) == id && !strings.ContainsAny(id, " \u00a0") {
		return id
	}
	sum := sha256.Sum256(append([]byte(d.MessageId+"\x00"), d.Body...))
	return "sha256:" + hex.EncodeToString(sum[:8])
}

// targetText returns a target in the form of --to and BRIDGE_ALLOW.
func targetText(exchange, routingKey string) string {
	return variables.TargetText(exchange, routingKey)
}

// text returns a header as a string, whatever its type.
func text(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	case []byte:
		return string(v)
	}
	return fmt.Sprint(value)
}

// jsonValue returns a header's value in JSON's types. A value that JSON cannot represent becomes
// text.
func jsonValue(value any) any {
	switch v := value.(type) {
	case amqp.Table:
		return jsonTable(v)
	case []any:
		list := make([]any, len(v))
		for i, element := range v {
			list[i] = jsonValue(element)
		}
		return list
	case []byte:
		return bodyText(v)
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Sprint(v)
		}
	case float32:
		return jsonValue(float64(v))
	case amqp.Decimal:
		return fmt.Sprintf("%de-%d", v.Value, v.Scale)
	}
	return value
}

func jsonTable(t amqp.Table) map[string]any {
	all := make(map[string]any, len(t))
	for name, value := range t {
		all[name] = jsonValue(value)
	}
	return all
}

// bodyText returns UTF-8 bytes as text, and other bytes in base64.
func bodyText(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return "base64:" + base64.StdEncoding.EncodeToString(b)
}

// cutBody returns the first bytes of a body as text, and their number; 0 if that is the whole body.
func cutBody(body []byte, most int) (text string, cutAt int) {
	if len(body) > most {
		body, cutAt = body[:most], most
	}
	return bodyText(body), cutAt
}

// validID parses a message ID, and reports whether the bridge accepts it.
func validID(text string) (uuid.UUID, bool) {
	id, err := uuid.Parse(text)
	return id, err == nil && len(text) == 36 && id != uuid.Nil
}
