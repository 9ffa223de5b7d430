package verifier

import (
	"cmp"
	"context"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier/internal/consume"
	"github.com/twoqueue/twoqueue/verifier/internal/forward"
	"github.com/twoqueue/twoqueue/verifier/internal/pipe"
)

// A pipeline takes messages from their delivery (unpack.go) to their ack. The judge decides how a
// message goes on by one of four calls:
//
//	committed    publish to the target, placed, forget, done, release
//	drop         publish to the audit queue if there is one, dropped, done, release
//	deadLetter   publish to the dead queue, placed, forget if the message has committed, done, release
//	setAside     Touch a committed carried row, publish to the waiting queue, placed, done, release
//
// release acks. The forwarder reports the end of each publication to publicationEnded, which sends a
// message to the dead queue if its target has not taken it.
type pipeline struct {
	*resources
	staging *consume.Consumer
	waiting *consume.Consumer

	load       loadMeter
	stay       stayTime                 // of messages of the waiting queue
	toLookUp   *pipe.Gatherer[*message] // messages that were just unpacked
	carried    *carriedSet              // nil if no row of the ledger carries a message
	stager     *stager                  // nil if no row of the ledger carries a message
	toTouch    *pipe.Gatherer[*message] // messages to set aside after a Touch
	touching   pipe.Counter             // messages in toTouch, or being touched
	forwarder  *forward.Forwarder
	toForget   *pipe.Gatherer[*message] // safe messages whose rows are to be deleted
	forgetting pipe.Counter             // messages in toForget, or whose rows are being deleted
}

func newPipeline(r *resources) *pipeline {
	return &pipeline{
		resources: r, toLookUp: pipe.NewGatherer[*message](),
		toTouch: pipe.NewGatherer[*message](), toForget: pipe.NewGatherer[*message](),
	}
}

// committed publishes messages whose transaction has committed to their targets.
func (p *pipeline) committed(messages ...*message) {
	now := time.Now()
	p.carried.committed(now, messages...)
	for _, m := range messages {
		if m.comesAgain() {
			continue
		}
		m.committed, m.judged = true, now
		if !p.allow.permits(m.staged) {
			p.deadLetter(m, deadReason{wire.DeadNotAllowed, notAllowed(m.staged.Target())})
			continue
		}
		if m.place.Ready() {
			p.publish(m.toTarget())
		}
	}
}

func notAllowed(to bridge.Target) string {
	if to.DirectReply() {
		return to.String() + " is a direct reply-to: the broker does not report whether the message arrived; the requester must name a queue"
	}
	return to.String() + " is not on the allow-list"
}

// drop ends a message whose transaction has rolled back. The audit queue may keep a copy.
func (p *pipeline) drop(m *message) {
	if m.comesAgain() {
		return
	}
	m.judged = time.Now()
	p.passed(m)
	if p.opts.Topology.Audit > 0 {
		p.publish(m.toAudit(p.opts.Topology.AuditQueue(), m.judged))
		return
	}
	p.dropped(m)
}

func (p *pipeline) dropped(m *message) {
	m.verdict = Dropped
	p.stats.dropped.Add(1)
	p.log.Debug("dropped", "message_id", m.id(), "outcome", driver.RolledBack.String())
	p.done(m)
}

// deadLetter sends a message to the dead queue.
func (p *pipeline) deadLetter(m *message, why deadReason) {
	if m.comesAgain() {
		return
	}
	if m.committed && p.holdsKey(m, why) {
		m.place.Finished()
		return
	}
	now := time.Now()
	m.why = why
	if m.judged.IsZero() {
		m.judged = now
	}
	p.publish(m.toDead(p.opts.Topology.DeadQueue(), now))
}

// holdsKey reports whether a message that should go to the dead queue stays in its ordered queue
// and holds its key instead.
func (p *pipeline) holdsKey(m *message, why deadReason) bool {
	if !m.place.Ordered() || !p.opts.HoldKeys {
		return false
	}
	p.log.Warn("a message holds its order key", "message_id", m.id(), "order_key", m.staged.OrderKey,
		"reason", why.code, "text", why.text)
	return true
}

// setAside moves messages to the waiting queue. Committed carried messages wait for a Touch first:
// the copy in the waiting queue is behind markers that were behind the message before.
func (p *pipeline) setAside(messages ...*message) {
	now := time.Now()
	var ready, first []*message
	for _, m := range messages {
		if m.needsTouch(now) {
			first = append(first, m)
		} else {
			ready = append(ready, m)
		}
	}
	if len(first) > 0 {
		p.touching.Add(len(first)) // until setAsideNow has published them
		p.toTouch.Add(first...)
	}
	p.setAsideNow(ready...)
}

// touchAndSetAside moves on the stage times of messages in toTouch, and sets them aside even if that
// fails.
func (p *pipeline) touchAndSetAside(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.toTouch.More:
		}
		batch := p.toTouch.Take(touchLimit)
		if err := p.toucher.touchMessages(ctx, batch); err != nil {
			p.jobs.touch.Report(err)
		}
		p.setAsideNow(batch...)
		p.touching.Add(-len(batch))
	}
}

// setAsideNow moves messages to the waiting queue, in groups: a group costs the broker as much as
// one message, and a long waiting queue circulates fast.
func (p *pipeline) setAsideNow(messages ...*message) {
	most := max(1, p.waiting.Prefetch/4) // no group is large beside the number that the consumer holds
	packing := p.limit.Bound(wire.Packing{Records: most, Bytes: groupBytes})
	for _, pub := range inGroups(p.ledger, p.opts.Topology.WaitingQueue(), packing, messages) {
		p.publish(pub)
	}
}

// setAsideAlone is setAsideNow without groups.
func (p *pipeline) setAsideAlone(messages ...*message) {
	now := time.Now()
	for _, m := range messages {
		p.publish(m.toWaiting(p.opts.Topology.WaitingQueue(), now))
	}
}

// publish passes a publication to the forwarder, which calls publicationEnded at its end.
func (p *pipeline) publish(pub *publication) {
	pub.Of = pub
	p.forwarder.Publish(&pub.Publication)
}

// publicationEnded takes a publication back from the forwarder, and acts on its result.
func (p *pipeline) publicationEnded(pub *publication, result forward.Result, err error) {
	switch result {
	case forward.Placed:
		p.placed(pub)
	case forward.Refused:
		p.refused(pub, err)
	case forward.Expired:
		p.giveUp(pub.message, deadReason{wire.DeadUnroutable, err.Error()})
	case forward.NackedOut:
		p.giveUp(pub.message, deadReason{wire.DeadFull, err.Error()})
	case forward.Skipped:
		p.dropped(pub.message)
	}
}

// placed handles a publication that the broker has confirmed.
func (p *pipeline) placed(pub *publication) {
	if pub.purpose == setAside { // the copy in the waiting queue will be judged
		p.wasSetAside(pub.messages()...)
		return
	}
	m := pub.message
	m.safe = time.Now()
	switch pub.purpose {
	case toTarget:
		m.verdict = Forwarded
		p.stats.forwarded.Add(1)
		p.passed(m)
	case deadLetter:
		p.dead(m)
		p.passed(m)
		if !m.committed { // judged again, it would go there twice
			m.unacked.Split.Store(true)
		}
	case audit:
		p.dropped(m)
		return
	}
	if m.committed {
		p.forgetting.Add(1)
		p.toForget.Add(m)
	} else {
		p.done(m)
	}
}

// passed gives the next message of the key its turn.
func (p *pipeline) passed(m *message) {
	if next := m.place.Passed(); next != nil {
		p.publish(next.(*message).toTarget())
	}
}

func (p *pipeline) dead(m *message) {
	m.verdict = DeadLettered
	p.stats.deadLettered.Add(1)
	p.log.Warn("dead-lettered", "message_id", m.id(), "reason", m.why.code, "text", m.why.text)
}

// wasSetAside handles messages of which the waiting queue now has copies.
func (p *pipeline) wasSetAside(messages ...*message) {
	now := time.Now()
	for _, m := range messages {
		m.verdict, m.safe = SetAside, now
		m.unacked.Split.Store(true)
	}
	p.stats.setAside.Add(int64(len(messages)))
	p.done(messages...)
}

// refused handles a publication that the broker will never accept. A refused dead letter is sent
// again as a record, which leaves room for the reason. A message that is larger than the broker
// accepts (its max_message_size was lowered) cannot be moved to any queue: it stays in its own.
func (p *pipeline) refused(pub *publication, err error) {
	switch m := pub.message; {
	case pub.group != nil:
		p.limit.Learn(err)
		p.setAsideAlone(pub.group...)
	case pub.purpose == toTarget:
		p.deadLetter(m, deadReason{wire.DeadRefused, err.Error()})
	case pub.purpose == audit:
		p.dropped(m)
	case pub.purpose == deadLetter && !pub.enclosed:
		p.publish(pub.asRecord())
	default:
		p.log.Error("broker accepts the message in no queue; it stays where it is", "message_id", m.id(),
			"bytes", len(m.delivery.Body), "queue", m.unacked.From.Queue, "retry_in", p.opts.HandBack, "error", err)
		m.unacked.Stranded.Store(true)
		m.delivery.Body, m.staged.Message.Publishing.Body = nil, nil // in an ordered queue the message holds its key
		p.release(m)
	}
}

// giveUp handles a message whose target has not taken it for too long. It goes to the dead queue, or
// is published again if it holds its key.
func (p *pipeline) giveUp(m *message, why deadReason) {
	if m.comesAgain() {
		return
	}
	if !p.holdsKey(m, why) {
		p.deadLetter(m, why)
		return
	}
	m.retries.HoldKey(time.Now())
	p.publish(m.toTarget())
}

// forget deletes the rows of safe messages, then lets the messages be acked. Both orders are right
// (rule 4 of package bridge). After a crash between the two steps, this order leaves a redelivery,
// which is dropped because its row is absent; the other order leaves an orphan row.
//
// If a row cannot be deleted now (locked, or the database does not answer), its message is acked
// nevertheless, and the forgetter retries the row. A message that was handed back instead would be
// forwarded again; a message that was held would fill the prefetch.
func (p *pipeline) forget(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.toForget.More:
		}
		pipe.Pause(ctx, forgetGather)
		batch := p.toForget.Take(forgetLimit)
		if len(batch) == 0 {
			continue
		}
		p.forgetter.delete(ctx, undeletedRows(batch))
		p.done(batch...)
		p.forgetting.Add(-len(batch))
	}
}

// done reports finished messages to the observer and lets them be acked.
func (p *pipeline) done(messages ...*message) {
	if p.opts.Observer != nil {
		notify(p.opts.Observer, p.jobs.observe, messages)
	}
	p.release(messages...)
}

// release removes messages from the session, and lets each delivery be acked with its last message.
func (p *pipeline) release(messages ...*message) {
	for len(messages) > 0 { // consumer by consumer
		c := messages[0].unacked.From
		var ended []*consume.Unacked
		var others []*message
		n := 0
		for _, m := range messages {
			if m.unacked.From != c {
				others = append(others, m)
				continue
			}
			n++
			m.place.Finished()
			if m.staged.Restaged && p.stager != nil {
				p.stager.staged.noteDone(m.staged.ID)
			}
			if m.carried != nil {
				if copies := p.carried.remove(m); len(copies) > 0 {
					defer p.endJoined(m, copies)
				}
			}
			if m.unacked.MessageDone() {
				ended = append(ended, m.unacked)
			}
		}
		c.Done(n, ended)
		messages = others
	}
}

// endJoined ends the copies that had joined m, which is done.
func (p *pipeline) endJoined(m *message, copies []*message) {
	done, again, back := endsOf(m, copies, p.waiting)
	for _, c := range done {
		if c.verdict == SetAside {
			p.stats.setAside.Add(1)
		} else {
			p.stats.dropped.Add(1)
		}
	}
	for _, c := range again {
		if p.carried.take(c) {
			p.toLookUp.Add(c)
		}
	}
	p.done(done...)
	p.release(back...)
	p.log.Debug("copies of a held message ended with it", "message_id", m.id(), "verdict", string(m.verdict),
		"done", len(done), "judged", len(again), "handed_back", len(back))
}

// blocked returns why nothing can be published, as far as a publishing connection has learned it,
// or "". While only carried rows wait, only the connection that stages them publishes and learns it.
func (p *pipeline) blocked() string { return cmp.Or(p.forwarder.Blocked(), p.broker.Blocked()) }
