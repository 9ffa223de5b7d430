package sender

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
)

// A carried message counts as waiting until it is confirmed, and an outage lasts until it ends.
func TestStatsCountWaitingMessagesAndDateTheOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := &slowBroker{takes: time.Minute}
		s, _, _ := newSenderOn(t, Options{}, broker)
		begun := time.Now()
		if _, err := s.SendTx(t.Context(), nil, bridge.Message{RoutingKey: "emails"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		stats := s.Stats()
		if stats.Recorded != 1 || stats.Carried != 1 || stats.Staged != 1 || stats.Confirmed != 0 || stats.Waiting <= carriedHeld || stats.Outage || !stats.Since.IsZero() {
			t.Errorf("under way: %+v", stats)
		}
		time.Sleep(2 * time.Second)
		if stats := s.Stats(); !stats.Outage || !errors.Is(stats.Err, bridge.ErrUnconfirmed) || stats.Since.Sub(begun) < outAfter || stats.Since.Sub(begun) > 2*outAfter {
			t.Errorf("not confirmed: %+v", stats)
		}
		broker.takes = 0
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		stats = s.Stats()
		if stats.Failed != 1 || stats.Confirmed != 1 || stats.Staged != 2 || stats.Waiting != 0 || stats.Outage || stats.Err != nil {
			t.Errorf("confirmed: %+v", stats)
		}
		if n := stats.Confirms.Counts[0]; n != 1 {
			t.Errorf("%d publications confirmed at once: %+v", n, stats.Confirms)
		}
	})
}

// Even a sender that carries nothing detects that the broker is out.
func TestStatsOfASenderThatCarriesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newSender(t, Options{Carry: CarryNever}, &slowBroker{fails: "bad"}, nil)
		message := func(body string) bridge.Message {
			m := bridge.Message{RoutingKey: "emails"}
			m.Publishing.Body = []byte(body)
			return m
		}
		if _, err := s.SendTx(t.Context(), nil, message("bad")); err == nil {
			t.Error("no error")
		}
		if stats := s.Stats(); !stats.Outage || stats.Failed != 1 || stats.Since != time.Now() {
			t.Errorf("failed: %+v", stats)
		}
		if _, err := s.SendTx(t.Context(), nil, message("good"), message("good")); err != nil {
			t.Error(err)
		}
		stats := s.Stats()
		if stats.Outage || stats.Confirmed != 2 || stats.Recorded != 3 || stats.Carried != 0 {
			t.Errorf("confirmed: %+v", stats)
		}
		if g := stats.Groups; g.Counts[0] != 1 || g.Counts[1] != 1 || g.Sum != 3 { // one of one message, and one of two
			t.Errorf("groups: %+v", g)
		}
	})
}
