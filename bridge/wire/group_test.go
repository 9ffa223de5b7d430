package wire_test

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

func TestASingleMessageIsItsOwnOnlyMember(t *testing.T) {
	staged, err := wire.Encode(fullMessage(), someLedger)
	if err != nil {
		t.Fatal(err)
	}
	d := delivered(staged)
	if members, err := wire.Members(d); err != nil || len(members) != 1 || !reflect.DeepEqual(members[0], d) {
		t.Errorf("members %+v (%v)", members, err)
	}
}

// A member of a group equals the message delivered alone.
func TestEveryMessageSurvivesTheGroup(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var records [][]byte
		var want []wire.Staged
		for range rapid.IntRange(1, 5).Draw(t, "members") {
			staged, err := wire.Encode(anyMessage(t), someLedger)
			if err != nil {
				t.Fatalf("encode: %v", err)
			}
			alone, err := wire.Parse(delivered(staged))
			if err != nil {
				t.Fatalf("parse: %v", err)
			}
			want = append(want, alone)
			records = append(records, wire.EncodeRecord(staged))
		}
		members, err := wire.Members(delivered(wire.Group(someLedger, records...)))
		if err != nil || len(members) != len(want) {
			t.Fatalf("%d members, want %d (%v)", len(members), len(want), err)
		}
		for i, member := range members {
			got, err := wire.Parse(member)
			if err != nil {
				t.Fatalf("member %d: %v", i, err)
			}
			if len(got.Message.Publishing.Body) == 0 && len(want[i].Message.Publishing.Body) == 0 {
				got.Message.Publishing.Body = want[i].Message.Publishing.Body
			}
			if !reflect.DeepEqual(got, want[i]) {
				t.Fatalf("member %d\n%#v\nwant\n%#v", i, got, want[i])
			}
		}
	})
}

// An unreadable member is malformed by itself, and keeps its bytes.
func TestABadMemberSpoilsNoOther(t *testing.T) {
	good := wire.EncodeRecord(amqp.Publishing{MessageId: "good", Body: []byte("body")})
	deep := amqp.Table{}
	for range 100 {
		deep = amqp.Table{"t": deep}
	}
	for want, bad := range map[string][]byte{
		"too many":           []byte("\x00\x00\x00\x03\x00\x00?\x00\x00\x00\x00"),
		"properties are not": []byte("\x00\x00\x00\x02\x20\x00\x00\x00\x00\x00"),
		"content header":     wire.EncodeRecord(amqp.Publishing{Headers: deep}),
		"at most":            wire.EncodeRecord(amqp.Publishing{Headers: amqp.Table{"huge": strings.Repeat("x", 200_000)}}),
	} {
		members, err := wire.Members(delivered(wire.Group(someLedger, good, bad, good)))
		if err != nil || len(members) != 3 || members[0].MessageId != "good" || members[2].MessageId != "good" {
			t.Errorf("%s: %d members (%v)", want, len(members), err)
			continue
		}
		_, err = wire.Parse(members[1])
		if !errors.Is(err, bridge.ErrMalformed) || !strings.Contains(err.Error(), want) || !bytes.Equal(members[1].Body, bad) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// FuzzMembers: Members does not panic on any body of a group, and its members are the same after
// another Group and Members.
func FuzzMembers(f *testing.F) {
	staged, err := wire.Encode(fullMessage(), someLedger)
	if err != nil {
		f.Fatal(err)
	}
	record := wire.EncodeRecord(staged)
	f.Add(record)
	f.Add(append(record, record...))
	f.Add([]byte("\x00\x00\x00\x02\x20\x00\x00\x00\x00\x00"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, body []byte) {
		group := amqp.Delivery{Headers: amqp.Table{wire.HeaderGroup: "1", wire.HeaderLedger: someLedger.String()}, Body: body}
		members, err := wire.Members(group)
		if err != nil {
			if !errors.Is(err, bridge.ErrMalformed) {
				t.Fatalf("error is not ErrMalformed: %v", err)
			}
			return
		}
		var records [][]byte
		for _, m := range members {
			_, _ = wire.Parse(m)
			records = append(records, wire.EncodeRecord(amqp.Publishing{
				Headers: m.Headers, ContentType: m.ContentType, ContentEncoding: m.ContentEncoding,
				DeliveryMode: m.DeliveryMode, Priority: m.Priority, CorrelationId: m.CorrelationId,
				ReplyTo: m.ReplyTo, Expiration: m.Expiration, MessageId: m.MessageId, Timestamp: m.Timestamp,
				Type: m.Type, UserId: m.UserId, AppId: m.AppId, Body: m.Body,
			}))
		}
		again, err := wire.Members(delivered(wire.Group(someLedger, records...)))
		if err != nil || len(again) != len(members) {
			t.Fatalf("again: %d members, were %d (%v)", len(again), len(members), err)
		}
		for i := range members {
			if again[i].MessageId != members[i].MessageId || string(again[i].Body) != string(members[i].Body) ||
				len(again[i].Headers) != len(members[i].Headers) {
				t.Fatalf("member %d\n%#v\nwas\n%#v", i, again[i], members[i])
			}
		}
	})
}
