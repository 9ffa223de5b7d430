package verifier

import (
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier/internal/consume"
	"github.com/twoqueue/twoqueue/verifier/internal/forward"
)

// A message is a delivered message, with the decisions about it.
type message struct {
	unacked  *consume.Unacked
	delivery amqp.Delivery // of a group's member: as if it had been delivered alone
	staged   wire.Staged   // zero if malformed
	received time.Time
	judged   time.Time
	safe     time.Time
	verdict  Verdict
	why      deadReason // why it goes to the dead queue, if it does

	committed bool            // its row exists and is deleted when the message is safe elsewhere
	retries   forward.Retries // at its target

	carried   *heldCarried // its entry among the held carried messages; nil if it has none
	touchedAt time.Time    // when its stage time was last moved, according to its copy in the waiting queue

	withheld bool // looks rolled back and waits for evidence; the room sets it

	place consume.Place // in the order of its key, if it has an order key
}

func (m *message) id() string { return m.delivery.MessageId }

// waitingSince returns when the message was staged, or if that is not known, received.
func (m *message) waitingSince() time.Time {
	if at := m.staged.StagedAt; !at.IsZero() && at.Before(m.received) {
		return at
	}
	return m.received
}

// comesAgain reports whether the message was delivered over a channel that was closed or is about to
// be. The message then comes again over the next channel; here it ends without an ack.
func (m *message) comesAgain() bool {
	order := m.unacked.From.Order() // the message has no place in it if it could not be judged
	if order == nil || !order.IsClosed() {
		return false
	}
	m.place.Finished() // the channel is closed when no message is on its way
	return true
}

// A publication is a message to publish and its destination: the message itself to its target, or a
// copy to one of the verifier's own queues. A group of messages goes to the waiting queue as one
// publication. Its result decides the next step of the message, which may be another publication.
type publication struct {
	forward.Publication
	purpose  purpose
	message  *message   // nil for a group
	group    []*message // the messages of a group for the waiting queue
	enclosed bool       // a dead letter whose body is the message as a record
}

// A purpose says why a message is published.
type purpose int

const (
	toTarget   purpose = iota
	deadLetter         // to the dead queue
	setAside           // to the waiting queue
	audit              // to the audit queue
)

// publicationOf returns the publication that the forwarder knows as p.
func publicationOf(p *forward.Publication) *publication { return p.Of.(*publication) }

// messages returns the publication's messages.
func (p *publication) messages() []*message {
	if p.message == nil {
		return p.group
	}
	return []*message{p.message}
}

// forwards makes a condition for publications from one for messages. It holds for a message's
// publication to its target only.
func forwards(must func(*message) bool) func(*forward.Publication) bool {
	return func(p *forward.Publication) bool {
		o := publicationOf(p)
		return o.purpose == toTarget && must(o.message)
	}
}

// messagesOf returns the messages of publications.
func messagesOf(publications []*forward.Publication) (out []*message) {
	for _, p := range publications {
		out = append(out, publicationOf(p).messages()...)
	}
	return out
}

// toTarget returns a publication of the message itself.
func (m *message) toTarget() *publication {
	p := m.to(toTarget, m.staged.Target(), &m.staged.Message.Publishing)
	p.Retries = &m.retries
	p.Received, p.StagedAt, p.Redelivered = m.received, m.staged.StagedAt, m.delivery.Redelivered
	return p
}

func (m *message) to(purpose purpose, to bridge.Target, publishing *amqp.Publishing) *publication {
	return &publication{purpose: purpose, message: m, Publication: forward.Publication{
		To: to, Publishing: publishing, ID: m.id(), Ordered: m.place.Ordered(), Once: purpose == audit,
	}}
}

// toWaiting returns a copy for the waiting queue, in the staged form.
func (m *message) toWaiting(queue string, now time.Time) *publication {
	staged := m.staged.Publishing()
	staged.Headers[wire.HeaderSetAsideAt] = now.UnixMilli()
	if !m.retries.UnroutableSince.IsZero() {
		staged.Headers[wire.HeaderUnroutableSince] = m.retries.UnroutableSince.UnixMilli()
	}
	if m.retries.Attempts > 0 {
		staged.Headers[wire.HeaderAttempts] = m.retries.Attempts
	}
	if m.carried != nil {
		if at := m.carried.touched.Load(); at != 0 {
			staged.Headers[wire.HeaderTouchedAt] = at
		}
	}
	if m.retries.Nacks > 0 {
		staged.Headers[wire.HeaderNacks], staged.Headers[wire.HeaderNackedAt] = m.retries.Nacks, m.retries.NackedAt.UnixMilli()
	}
	return m.to(setAside, bridge.Target{RoutingKey: queue}, &staged)
}

// groupBytes bounds the records of messages that are set aside together. A message with more than a
// quarter of it goes alone: its cost is its bytes.
const groupBytes = 64 << 10

// groupRecord returns the record of a copy for the waiting queue, if the copy may be in a group.
func (p *publication) groupRecord() ([]byte, bool) {
	const most = groupBytes / 4
	if len(p.Publishing.Body) > most {
		return nil, false
	}
	record := wire.EncodeRecord(*p.Publishing)
	if len(record) > most {
		return nil, false
	}
	if p.message.unacked.IsSingle() { // it may have headers that are not allowed in a group's member
		if _, err := wire.Alone(p.message.staged.Ledger, record); err != nil {
			return nil, false
		}
	}
	return record, true
}

// inGroups returns copies of messages for the waiting queue, as groups within the bounds of packing and
// as single messages.
func inGroups(ledger driver.RecordedRows, queue string, packing wire.Packing, messages []*message) (out []*publication) {
	now := time.Now()
	var group []*publication
	var records [][]byte
	size := 0
	flush := func() {
		switch len(group) {
		case 0:
			return
		case 1:
			out = append(out, group[0])
		default:
			out = append(out, groupOf(ledger.Identity(), group, records, now))
		}
		group, records, size = nil, nil, 0
	}
	for _, m := range messages {
		p := m.toWaiting(queue, now)
		record, ok := p.groupRecord()
		if !ok {
			out = append(out, p)
			continue
		}
		if !packing.Fits(len(group)+1, size+len(record)) {
			flush()
		}
		group, records, size = append(group, p), append(records, record), size+len(record)
	}
	flush()
	return out
}

// groupOf makes one publication of several.
func groupOf(ledger uuid.UUID, members []*publication, records [][]byte, now time.Time) *publication {
	publishing := wire.Group(ledger, records...)
	publishing.Headers[wire.HeaderSetAsideAt] = now.UnixMilli()
	group := &publication{purpose: setAside, Publication: forward.Publication{
		To: members[0].To, Publishing: &publishing, ID: publishing.MessageId,
	}}
	for _, p := range members {
		group.group = append(group.group, p.message)
	}
	return group
}

// toAudit returns a copy for the audit queue, in the staged form.
func (m *message) toAudit(queue string, now time.Time) *publication {
	staged := m.staged.Publishing()
	staged.Headers[wire.HeaderDroppedAt] = now.UTC().Format(time.RFC3339)
	return m.to(audit, bridge.Target{RoutingKey: queue}, &staged)
}

// A deadReason says why a message goes to the dead queue.
type deadReason struct {
	code string // one of wire.DeadReasons
	text string
}

// toDead returns a copy for the dead queue: the message in its staged form, with the reason.
func (m *message) toDead(queue string, now time.Time) *publication {
	const textLimit = 1000
	outcome := "unknown"
	if m.committed {
		outcome = driver.Committed.String()
	}
	letter := wire.DeadLetter(m.delivery, amqp.Table{
		wire.HeaderDeadReason:   m.why.code,
		wire.HeaderDeadText:     m.why.text[:min(len(m.why.text), textLimit)],
		wire.HeaderDeadVerdict:  outcome,
		wire.HeaderDeadAttempts: m.retries.Attempts,
		wire.HeaderDeadAt:       now.UTC().Format(time.RFC3339),
	})
	_, record := letter.Headers[wire.HeaderDeadRecord]
	p := m.to(deadLetter, bridge.Target{RoutingKey: queue}, &letter)
	p.enclosed = record && !wire.Unreadable(m.delivery)
	return p
}

// asRecord returns a dead letter whose body contains this one as a record.
func (p *publication) asRecord() *publication {
	record := wire.DeadRecord(*p.Publishing)
	letter := p.message.to(deadLetter, p.To, &record)
	letter.enclosed = true
	return letter
}
