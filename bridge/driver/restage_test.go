package driver

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// Whatever their sizes: what goes to the staging queue again is every message once, in
// order, as it was, and staged now.
func TestRestageIsEveryMessageOnceAndStagedNow(t *testing.T) {
	ledger, now := uuid.New(), time.UnixMilli(time.Now().UnixMilli())
	var parked []Parked
	var bodies [][]byte
	for i, size := range []int{10, 20, restageBytes - 500, 0, 3 * restageBytes, 5, 5, 2 * restageBytes} {
		id := uuid.Must(uuid.NewV7())
		body := bytes.Repeat([]byte{byte('a' + i)}, size)
		publishing, err := wire.Encode(bridge.Message{ID: id, RoutingKey: "q", Publishing: amqp.Publishing{Type: "t", Body: body}}, ledger)
		if err != nil {
			t.Fatal(err)
		}
		parked = append(parked, Parked{ID: id, Message: wire.EncodeRecord(publishing)})
		bodies = append(bodies, body)
	}
	staged, err := restage(ledger, now, parked)
	if err != nil {
		t.Fatal(err)
	}
	if len(staged) >= len(parked) || len(staged) < 3 {
		t.Errorf("%d messages of %d: not grouped, or not bounded", len(staged), len(parked))
	}
	n := 0
	for _, p := range staged {
		if _, grouped := p.Headers[wire.HeaderGroup]; grouped && len(p.Body) > restageBytes {
			t.Errorf("a group of %d bytes", len(p.Body))
		}
		members, err := wire.Members(amqp.Delivery{Headers: p.Headers, Body: p.Body, MessageId: p.MessageId, Type: p.Type})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range members {
			s, err := wire.Parse(d)
			if err != nil {
				t.Fatal(err)
			}
			if s.ID != parked[n].ID || s.Ledger != ledger || s.RoutingKey != "q" || !s.StagedAt.Equal(now) ||
				s.Publishing().Type != "t" || !slices.Equal(s.Publishing().Body, bodies[n]) {
				t.Errorf("message %d came as %v, staged at %v", n, s.ID, s.StagedAt)
			}
			n++
		}
	}
	if n != len(parked) {
		t.Errorf("%d of %d messages", n, len(parked))
	}
	for i, p := range parked {
		s, err := wire.ReadRecord(ledger, p.Message)
		if err != nil || s.ID != p.ID || s.Ledger != ledger || !slices.Equal(s.Publishing().Body, bodies[i]) {
			t.Errorf("parked message %d is read as %v, %v", i, s.ID, err)
		}
	}
	if _, err := wire.ReadRecord(ledger, []byte("no record")); err == nil {
		t.Error("what is no record is read as one")
	}
}
