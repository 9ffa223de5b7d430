package verifier

import (
	"log/slog"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier/internal/consume"
	"github.com/twoqueue/twoqueue/verifier/internal/forward"
)

// testConsumer returns a consumer without a channel.
func testConsumer(queue string, prefetch int) *consume.Consumer {
	return consume.New(consume.Config{Queue: queue, Prefetch: prefetch, MaxBytes: 64 << 20, HandBack: time.Hour})
}

// testSession returns a session without servers and consumers. It publishes nothing.
func testSession(r *resources) *session {
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	s := &session{pipeline: newPipeline(r), room: newWaitingRoom(1)}
	s.limits = &waitLimits{pipeline: s.pipeline, room: s.room, more: make(chan struct{}, 1)}
	s.forwarder = forward.New(forward.Config{
		ConfirmTimeout: s.opts.ConfirmTimeout, Unroutable: time.Minute, Copies: 10, Log: slog.New(slog.DiscardHandler),
		Ended: func(p *forward.Publication, result forward.Result, err error) {
			s.publicationEnded(publicationOf(p), result, err)
		},
	})
	return s
}

// unsent removes and returns the publications that wait for a channel.
func unsent(s *session) (out []*publication) {
	for _, p := range s.forwarder.RemoveUnsent(anyPublication) {
		out = append(out, publicationOf(p))
	}
	return out
}

func anyPublication(*forward.Publication) bool { return true }

// A drain looks for such messages until it finds none: it must find each once, even if a settler or
// a lookup had it when the end came.
func TestTheMembersOfATornGroupAreSetAsideOnceAtTheEnd(t *testing.T) {
	s := testSession(&resources{})
	s.waiting = testConsumer("w", 10)
	s.forwarder.Hold(bridge.Target{RoutingKey: "target"})
	places := map[string]func(*message){
		"not looked up": func(m *message) { s.toLookUp.Add(m) },
		"in the room":   func(m *message) { s.room.enter(false, m) },
		"with a settler": func(m *message) {
			s.room.enter(false, m)
			got, _ := s.room.pick()
			s.room.waited(got, true)
		},
		"its target is held": func(m *message) { s.publish(m.toTarget()) },
	}
	groups := []*consume.Unacked{{From: s.waiting}, {From: s.waiting}}
	for _, place := range places {
		for _, u := range groups {
			m := &message{unacked: u}
			m.staged = wire.Staged{Message: bridge.Message{RoutingKey: "target",
				Publishing: amqp.Publishing{Body: make([]byte, groupBytes)}}} // set aside alone
			place(m)
		}
	}
	for i, u := range groups {
		u.Split.Store(true)
		if n := s.setAsideSplitGroups(); n != len(places) {
			t.Errorf("group %d: %d are set aside, want %d", i, n, len(places))
		}
		if n := s.setAsideSplitGroups(); n != 0 {
			t.Fatalf("group %d: %d are set aside again", i, n)
		}
	}
	if n := s.forwarder.Moving().Value(); n != 2*len(places) {
		t.Errorf("%d are on their way", n)
	}
}
