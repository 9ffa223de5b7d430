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

// steps has the steps of a message from its delivery (arrive.go) to its ack. The judge decides the
// message's way by one of four calls:
//
//	committed    publish to the target, placed, forget, done, release
//	drop         publish to the audit queue if there is one, dropped, done, release
//	deadLetter   publish to the dead queue, placed, forget if the message has committed, done, release
//	setAside     Touch a committed carried row, publish to the waiting queue, placed, done, release
//
// release acks. The forwarder reports the end of each publication to publicationEnded, which sends a
// message on as a dead letter if its target has not taken it.
type steps struct {
	*shared
	staging *consume.Consumer
	waiting *consume.Consumer

	load       loadMeter
	stay       stayTime // of messages of the waiting queue
	arrivals   *pipe.Gatherer[*message]
	carried    *carriedSet              // nil if no row of the ledger carries a message
	stager     *stager                  // nil if no row of the ledger carries a message
	toTouch    *pipe.Gatherer[*message] // messages to set aside after a Touch
	touching   pipe.Counter             // messages in toTouch, or being touched
	forwarder  *forward.Forwarder
	toForget   *pipe.Gatherer[*message]
	forgetting pipe.Counter // messages in toForget, or whose rows are being deleted
}

func newSteps(sh *shared) *steps {
	return &steps{
		shared: sh, arrivals: pipe.NewGatherer[*message](),
		toTouch: pipe.NewGatherer[*message](), toForget: pipe.NewGatherer[*message](),
	}
}

// committed sends messages on whose transaction has committed.
func (s *steps) committed(messages ...*message) {
	now := time.Now()
	s.carried.committed(now, messages...)
	for _, m := range messages {
		if m.comesAgain() {
			continue
		}
		m.committed, m.judged = true, now
		if !s.allow.permits(m.staged) {
			s.deadLetter(m, deathReason{wire.DeadNotAllowed, notAllowed(m.staged.Target())})
			continue
		}
		if m.place.Ready() {
			s.publish(m.toTarget())
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
func (s *steps) drop(m *message) {
	if m.comesAgain() {
		return
	}
	m.judged = time.Now()
	s.passed(m)
	if s.opts.Topology.Audit > 0 {
		s.publish(m.toAudit(s.opts.Topology.AuditQueue(), m.judged))
		return
	}
	s.dropped(m)
}

func (s *steps) dropped(m *message) {
	m.verdict = Dropped
	s.stats.dropped.Add(1)
	s.log.Debug("dropped", "message_id", m.id(), "outcome", driver.RolledBack.String())
	s.done(m)
}

// deadLetter sends a message to the dead queue.
func (s *steps) deadLetter(m *message, why deathReason) {
	if m.comesAgain() {
		return
	}
	if m.committed && s.holdsKey(m, why) {
		m.place.Finished()
		return
	}
	now := time.Now()
	m.why = why
	if m.judged.IsZero() {
		m.judged = now
	}
	s.publish(m.toDead(s.opts.Topology.DeadQueue(), now))
}

// holdsKey reports whether a message that should go to the dead queue stays in its ordered queue
// and holds its key instead.
func (s *steps) holdsKey(m *message, why deathReason) bool {
	if !m.place.Ordered() || !s.opts.HoldKeys {
		return false
	}
	s.log.Warn("a message holds its order key", "message_id", m.id(), "order_key", m.staged.OrderKey,
		"reason", why.code, "text", why.text)
	return true
}

// setAside moves messages to the waiting queue. Committed carried messages wait for a Touch first:
// the copy in the waiting queue is behind markers that were behind the message before.
func (s *steps) setAside(messages ...*message) {
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
		s.touching.Add(len(first)) // until setAsideNow has published them
		s.toTouch.Add(first...)
	}
	s.setAsideNow(ready...)
}

// touchFirst moves on the stage times of messages, then sets them aside, whether that has worked or
// not.
func (s *steps) touchFirst(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.toTouch.More:
		}
		batch := s.toTouch.Take(touchLimit)
		if err := s.toucher.first(ctx, batch); err != nil {
			s.jobs.touch.Report(err)
		}
		s.setAsideNow(batch...)
		s.touching.Add(-len(batch))
	}
}

// setAsideNow moves messages to the waiting queue, in groups: a group costs the broker as much as
// one message, and a long waiting queue circulates fast.
func (s *steps) setAsideNow(messages ...*message) {
	most := max(1, s.waiting.Prefetch/4) // no group is large beside the number that the consumer holds
	for _, p := range inGroups(s.ledger, s.opts.Topology.WaitingQueue(), most, messages) {
		s.publish(p)
	}
}

// setAsideAlone is setAsideNow without groups.
func (s *steps) setAsideAlone(messages ...*message) {
	now := time.Now()
	for _, m := range messages {
		s.publish(m.toWaiting(s.opts.Topology.WaitingQueue(), now))
	}
}

// publish passes a publication to the forwarder, which calls publicationEnded at its end.
func (s *steps) publish(p *publication) {
	p.Of = p
	s.forwarder.Publish(&p.Publication)
}

// publicationEnded takes over publications that the forwarder has ended.
func (s *steps) publicationEnded(p *publication, result forward.Result, err error) {
	switch result {
	case forward.Placed:
		s.placed(p)
	case forward.Refused:
		s.refused(p, err)
	case forward.Expired:
		s.giveUp(p.message, deathReason{wire.DeadUnroutable, err.Error()})
	case forward.NackedOut:
		s.giveUp(p.message, deathReason{wire.DeadFull, err.Error()})
	case forward.Skipped:
		s.dropped(p.message)
	}
}

// placed: the broker has confirmed the publication.
func (s *steps) placed(p *publication) {
	if p.purpose == setAside { // the copy in the waiting queue will be judged
		s.wasSetAside(p.messages()...)
		return
	}
	m := p.message
	m.safe = time.Now()
	switch p.purpose {
	case toTarget:
		m.verdict = Forwarded
		s.stats.forwarded.Add(1)
		s.passed(m)
	case deadLetter:
		s.dead(m)
		s.passed(m)
		if !m.committed { // judged again, it would go there twice
			m.unacked.Apart.Store(true)
		}
	case audit:
		s.dropped(m)
		return
	}
	if m.committed {
		s.forgetting.Add(1)
		s.toForget.Add(m)
	} else {
		s.done(m)
	}
}

// passed gives the next message of the key its turn.
func (s *steps) passed(m *message) {
	if next := m.place.Passed(); next != nil {
		s.publish(next.(*message).toTarget())
	}
}

func (s *steps) dead(m *message) {
	m.verdict = DeadLettered
	s.stats.deadLettered.Add(1)
	s.log.Warn("dead-lettered", "message_id", m.id(), "reason", m.why.code, "text", m.why.text)
}

// wasSetAside: the waiting queue has copies of these messages.
func (s *steps) wasSetAside(messages ...*message) {
	now := time.Now()
	for _, m := range messages {
		m.verdict, m.safe = SetAside, now
		m.unacked.Apart.Store(true)
	}
	s.stats.setAside.Add(int64(len(messages)))
	s.done(messages...)
}

// refused: the broker will never accept p. A dead letter then becomes a record, which leaves room
// for the reason. A message that is larger than the broker accepts (its max_message_size was
// lowered) cannot be moved to any queue: it stays in its own.
func (s *steps) refused(p *publication, err error) {
	switch m := p.message; {
	case p.group != nil:
		s.setAsideAlone(p.group...)
	case p.purpose == toTarget:
		s.deadLetter(m, deathReason{wire.DeadRefused, err.Error()})
	case p.purpose == audit:
		s.dropped(m)
	case p.purpose == deadLetter && !p.enclosed:
		s.publish(p.asRecord())
	default:
		s.log.Error("broker accepts the message in no queue; it stays where it is", "message_id", m.id(),
			"bytes", len(m.delivery.Body), "queue", m.unacked.From.Queue, "retry_in", s.opts.HandBack, "error", err)
		m.unacked.Stranded.Store(true)
		m.delivery.Body, m.staged.Message.Publishing.Body = nil, nil // in an ordered queue the message holds its key
		s.release(m)
	}
}

// giveUp is called when a message's target has not taken it for too long. A message that holds its
// key is published again, all others go to the dead queue.
func (s *steps) giveUp(m *message, why deathReason) {
	if m.comesAgain() {
		return
	}
	if !s.holdsKey(m, why) {
		s.deadLetter(m, why)
		return
	}
	m.retries.HoldKey(time.Now())
	s.publish(m.toTarget())
}

// forget deletes the rows of safe messages, then lets the messages be acked. Both orders are right
// (rule 4 of package bridge), but after a crash between the two steps, this order leaves a
// redelivery, whose row is absent and which is dropped. The other order leaves an orphan row.
//
// A row that cannot be deleted now (locked, or the database does not answer) delays no message: its
// message is acked nevertheless, and the forgetter retries the row. If the message were handed back
// instead, it would be forwarded again; if it were held, it would fill the prefetch.
func (s *steps) forget(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.toForget.More:
		}
		pipe.Pause(ctx, forgetGather)
		batch := s.toForget.Take(forgetLimit)
		if len(batch) == 0 {
			continue
		}
		s.forgetter.delete(ctx, leftRows(batch))
		s.done(batch...)
		s.forgetting.Add(-len(batch))
	}
}

// done reports finished messages to the observer and lets them be acked.
func (s *steps) done(messages ...*message) {
	if s.opts.Observer != nil {
		notify(s.opts.Observer, s.jobs.observe, messages)
	}
	s.release(messages...)
}

// release removes messages from the session, and lets the deliveries that they complete be acked.
func (s *steps) release(messages ...*message) {
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
			if m.staged.Restaged && s.stager != nil {
				s.stager.staged.noteDone(m.staged.ID)
			}
			if m.carried != nil {
				if copies := s.carried.remove(m); len(copies) > 0 {
					defer s.endJoined(m, copies)
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
func (s *steps) endJoined(m *message, copies []*message) {
	done, again, back := endsOf(m, copies, s.waiting)
	for _, twin := range done {
		if twin.verdict == SetAside {
			s.stats.setAside.Add(1)
		} else {
			s.stats.dropped.Add(1)
		}
	}
	for _, twin := range again {
		if s.carried.take(twin) {
			s.arrivals.Add(twin)
		}
	}
	s.done(done...)
	s.release(back...)
	s.log.Debug("copies of a held message ended with it", "message_id", m.id(), "verdict", string(m.verdict),
		"done", len(done), "judged", len(again), "handed_back", len(back))
}

// blocked returns why nothing can be published, as far as a publishing connection has learned it,
// or "". While only carried rows wait, nothing is forwarded, so only the connection that stages
// learns it.
func (s *steps) blocked() string { return cmp.Or(s.forwarder.Blocked(), s.broker.Blocked()) }
