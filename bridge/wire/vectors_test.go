package wire_test

import (
	"bytes"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// The files are compiled in, so no test can write the vectors that it then reads.
//
//go:embed testdata/vectors/*.json
var vectorFiles embed.FS

// A check compares the package with one test vector.
type check interface{ check() error }

// checks are the kinds of test vectors, each with its number of vectors. testdata/vectors/README.md
// describes them. Each check compares whole values, and a vector may have no field that it does not
// know.
var checks = map[string]struct {
	new    func() check
	number int
}{
	"message":          {func() check { return new(messageVector) }, 22},
	"refused":          {func() check { return new(refusedVector) }, 34},
	"parsed":           {func() check { return new(parsedVector) }, 11},
	"malformed":        {func() check { return new(malformedVector) }, 27},
	"order":            {func() check { return new(orderVector) }, 5},
	"record":           {func() check { return new(recordVector) }, 7},
	"parsed-record":    {func() check { return new(parsedRecordVector) }, 4},
	"malformed-record": {func() check { return new(malformedRecordVector) }, 11},
	"group":            {func() check { return new(groupVector) }, 3},
	"parsed-group":     {func() check { return new(parsedGroupVector) }, 5},
	"malformed-group":  {func() check { return new(malformedGroupVector) }, 5},
	"row":              {func() check { return new(rowVector) }, 19},
}

// Senders in other languages are tested with these vectors, and queues and databases hold messages
// in this format: a vector must never change.
func TestTheWireFormatIsTheOneOfTheVectors(t *testing.T) {
	seen := make(map[string]int)
	for name, raw := range vectors(t) {
		kind, err := kindOf(raw)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		seen[kind]++
		if err := checkVector(kind, raw); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for kind, want := range checks {
		if seen[kind] != want.number {
			t.Errorf("%d vectors of kind %q, want %d", seen[kind], kind, want.number)
		}
	}
}

// vectors returns all vectors, by the name of their file and their rule.
func vectors(t *testing.T) map[string]json.RawMessage {
	t.Helper()
	files, err := fs.Glob(vectorFiles, "testdata/vectors/*.json")
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]json.RawMessage)
	for _, file := range files {
		content, err := vectorFiles.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var list []json.RawMessage
		if err := json.Unmarshal(content, &list); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for i, raw := range list {
			var named struct{ Rule string }
			if err := json.Unmarshal(raw, &named); err != nil || named.Rule == "" {
				t.Errorf("%s: vector %d names no rule (%v)", file, i, err)
			}
			all[fmt.Sprintf("%s: %d: %s", file, i, named.Rule)] = raw
		}
	}
	return all
}

func kindOf(raw json.RawMessage) (string, error) {
	var named struct{ Kind string }
	if err := json.Unmarshal(raw, &named); err != nil {
		return "", err
	}
	if _, known := checks[named.Kind]; !known {
		return "", fmt.Errorf("kind %q is not known", named.Kind)
	}
	return named.Kind, nil
}

func checkVector(kind string, raw json.RawMessage) error {
	vector := checks[kind].new()
	if err := decode(raw, vector); err != nil {
		return err
	}
	return vector.check()
}

// decode refuses fields that it does not know, and keeps numbers as they are.
func decode(raw json.RawMessage, into any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	d.UseNumber()
	return d.Decode(into)
}

// head has the fields of every vector.
type head struct{ Kind, Rule string }

type messageVector struct {
	head
	Ledger  uuid.UUID
	Message vectorMessage
	Staged  vectorContent
	Parsed  vectorParsed
}

func (v *messageVector) check() error {
	m := v.Message.message()
	got, err := wire.Encode(m, v.Ledger)
	if err != nil {
		return err
	}
	if v.Message.Carried || v.Message.StagedAt != 0 { // which Encode does not know
		s := wire.Staged{Message: m, Ledger: v.Ledger, UserID: m.Publishing.UserId, StagedAt: wire.MadeAt(m.ID), Carried: v.Message.Carried}
		if v.Message.StagedAt != 0 {
			s.StagedAt = time.UnixMilli(v.Message.StagedAt)
		}
		got = s.Publishing()
	}
	want := v.Staged.publishing()
	if err := same("staged", got, want); err != nil {
		return err
	}
	return v.Parsed.compare(delivered(want))
}

type refusedVector struct {
	head
	Message vectorMessage
	Reason  string
}

func (v *refusedVector) check() error {
	m := v.Message.message()
	_, err := wire.Encode(m, someLedger)
	return refusal(err, bridge.ErrInvalidMessage, v.Reason)
}

type parsedVector struct {
	head
	Staged vectorContent
	Parsed vectorParsed
}

func (v *parsedVector) check() error {
	staged := v.Staged.publishing()
	return v.Parsed.compare(delivered(staged))
}

type malformedVector struct {
	head
	Staged vectorContent
	Reason string
}

func (v *malformedVector) check() error {
	staged := v.Staged.publishing()
	_, err := wire.Parse(delivered(staged))
	return refusal(err, bridge.ErrMalformed, v.Reason)
}

type orderVector struct {
	head
	OrderKey      vectorText        `json:"order-key"`
	StagingQueue  string            `json:"staging-queue"`
	OrderedQueues map[string]string `json:"ordered-queues"`
}

func (v *orderVector) check() error {
	for number, want := range v.OrderedQueues {
		n, err := strconv.Atoi(number)
		if err != nil {
			return err
		}
		if got := (bridge.Topology{Queue: v.StagingQueue, OrderedShards: n}).OrderedQueueOf(string(v.OrderKey)); got != want {
			return fmt.Errorf("of %d queues %q, want %q", n, got, want)
		}
	}
	return nil
}

type recordVector struct {
	head
	Ledger uuid.UUID
	Staged vectorContent
	Record vectorBytes
	Parsed vectorParsed
}

func (v *recordVector) check() error {
	staged := v.Staged.publishing()
	if err := sameRecord(v.Ledger, wire.EncodeRecord(staged), v.Record); err != nil {
		return err
	}
	return v.Parsed.compareRecord(v.Ledger, v.Record)
}

type parsedRecordVector struct {
	head
	Ledger uuid.UUID
	Record vectorBytes
	Parsed vectorParsed
}

func (v *parsedRecordVector) check() error { return v.Parsed.compareRecord(v.Ledger, v.Record) }

type malformedRecordVector struct {
	head
	Ledger uuid.UUID
	Record vectorBytes
	Reason string
}

func (v *malformedRecordVector) check() error {
	_, err := wire.ReadRecord(v.Ledger, v.Record)
	return refusal(err, bridge.ErrMalformed, v.Reason)
}

type groupVector struct {
	head
	Ledger  uuid.UUID
	Records []vectorBytes
	Group   vectorContent
	Parsed  []vectorParsed
}

func (v *groupVector) check() error {
	records := make([][]byte, len(v.Records))
	for i, record := range v.Records {
		records[i] = record
	}
	got := wire.Group(v.Ledger, records...)
	if got.MessageId == "" {
		return errors.New("the group has no message-id")
	}
	got.MessageId = "" // its value has no meaning
	want := v.Group.publishing()
	if err := same("group", got, want); err != nil {
		return err
	}
	members, err := wire.Members(delivered(want))
	if err != nil {
		return err
	}
	if len(members) != len(v.Parsed) {
		return fmt.Errorf("%d members, want %d", len(members), len(v.Parsed))
	}
	for i, member := range members {
		if err := v.Parsed[i].compare(member); err != nil {
			return fmt.Errorf("member %d: %w", i+1, err)
		}
	}
	return nil
}

type parsedGroupVector struct {
	head
	Group   vectorContent
	Members []struct {
		vectorParsed
		Malformed string
	}
}

func (v *parsedGroupVector) check() error {
	group := v.Group.publishing()
	members, err := wire.Members(delivered(group))
	if err != nil {
		return err
	}
	if len(members) != len(v.Members) {
		return fmt.Errorf("%d members, want %d", len(members), len(v.Members))
	}
	for i, member := range members {
		if reason := v.Members[i].Malformed; reason != "" {
			_, err = wire.Parse(member)
			err = refusal(err, bridge.ErrMalformed, reason)
		} else {
			err = v.Members[i].compare(member)
		}
		if err != nil {
			return fmt.Errorf("member %d: %w", i+1, err)
		}
	}
	return nil
}

type malformedGroupVector struct {
	head
	Group  vectorContent
	Reason string
}

func (v *malformedGroupVector) check() error {
	group := v.Group.publishing()
	_, err := wire.Members(delivered(group))
	return refusal(err, bridge.ErrMalformed, v.Reason)
}

type rowVector struct {
	head
	Database  string
	Clock     string
	Ledger    uuid.UUID
	Staged    *vectorContent
	Published bool
	NotBefore string `json:"not-before"`
	ID        uuid.UUID
	Columns   map[string]any
}

// check compares the columns with the rules in the package's comment. The tests of each database
// check that its statements follow these rules.
func (v *rowVector) check() error {
	id, got := v.ID, make(map[string]any)
	if v.Staged != nil {
		staged := v.Staged.publishing()
		if err := id.UnmarshalText([]byte(staged.MessageId)); err != nil {
			return err
		}
		var err error
		if got["recorded_at"], got["stage_at"], err = v.times(); err != nil {
			return err
		}
		message, _ := v.Columns["message"].(map[string]any)
		text, _ := message["hex"].(string)
		record, err := hex.DecodeString(text)
		if err != nil {
			return err
		}
		if err := sameRecord(v.Ledger, wire.EncodeRecord(staged), record); err != nil {
			return err
		}
		if parsed, err := wire.ReadRecord(v.Ledger, record); err != nil || !parsed.Carried {
			return fmt.Errorf("message says that no row carries it: %+v, %w", parsed, err)
		}
		got["message"] = message
	}
	if got["id"] = id.String(); v.Database == "mysql" {
		got["id"] = map[string]any{"hex": hex.EncodeToString(id[:])}
	}
	return same("columns", got, v.Columns)
}

// times returns recorded_at and stage_at.
func (v *rowVector) times() (recordedAt, stageAt any, err error) {
	const layout = "2006-01-02 15:04:05.000"
	recorded, err := time.Parse(layout, v.Clock)
	if err != nil {
		return nil, nil, err
	}
	delayed := false
	if v.NotBefore != "" {
		due, err := time.Parse(layout, v.NotBefore)
		if err != nil {
			return nil, nil, err
		}
		if delayed = due.After(recorded); delayed {
			recorded = due
		}
	}
	stage := recorded
	if v.Published {
		stage = recorded.Add(driver.PublishedGrace)
	}
	if v.Database != "sqlite" {
		return recorded.Format(layout), stage.Format(layout), nil
	}
	switch {
	case delayed:
		recorded = recorded.Add(time.Second - 1).Truncate(time.Second)
	case !v.Published:
		stage = stage.Truncate(time.Second)
	}
	number := func(n int64) json.Number { return json.Number(strconv.FormatInt(n, 10)) }
	return number(recorded.Unix()), number(stage.UnixMilli()), nil
}

// refusal checks that err is the expected error with the expected reason.
func refusal(err, kind error, reason string) error {
	if !errors.Is(err, kind) || reason == "" || !strings.Contains(err.Error(), reason) {
		return fmt.Errorf("error %w, want %q", err, reason)
	}
	return nil
}

func same(what string, got, want any) error {
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("%s\n%#v\nwant\n%#v", what, got, want)
	}
	return nil
}

// sameRecord compares two records. The order of headers has no meaning, so records of the same
// meaning must have the same bytes in any order.
func sameRecord(ledger uuid.UUID, got, want []byte) error {
	one, err := wire.ReadRecord(ledger, got)
	if err != nil {
		return err
	}
	other, err := wire.ReadRecord(ledger, want)
	if err != nil {
		return err
	}
	if !bytes.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		return fmt.Errorf("record\n%x\nwant\n%x", got, want)
	}
	return same("record", one, other)
}

// A vectorText is a JSON string, or a text that repeats.
type vectorText string

func (v *vectorText) UnmarshalJSON(raw []byte) error {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		*v = vectorText(text)
		return nil
	}
	var long struct {
		Repeat string
		Times  int
	}
	if err := decode(raw, &long); err != nil {
		return err
	}
	*v = vectorText(strings.Repeat(long.Repeat, long.Times))
	return nil
}

// vectorBytes are bytes in hexadecimal digits.
type vectorBytes []byte

func (v *vectorBytes) UnmarshalJSON(raw []byte) error {
	var text vectorText
	if err := json.Unmarshal(raw, &text); err != nil {
		return err
	}
	b, err := hex.DecodeString(string(text))
	if len(b) > 0 {
		*v = b
	}
	return err
}

// A vectorContent is a message as it is published or delivered.
type vectorContent struct {
	Properties struct {
		ContentType     vectorText `json:"content-type"`
		ContentEncoding vectorText `json:"content-encoding"`
		DeliveryMode    uint8      `json:"delivery-mode"`
		Priority        uint8
		CorrelationID   vectorText `json:"correlation-id"`
		ReplyTo         vectorText `json:"reply-to"`
		Expiration      vectorText
		MessageID       vectorText `json:"message-id"`
		Timestamp       int64
		Type            vectorText
		UserID          vectorText `json:"user-id"`
		AppID           vectorText `json:"app-id"`
	}
	Headers         map[string]vectorField
	NumberedHeaders int `json:"numbered-headers"`
	Body            vectorBytes
}

func (v *vectorContent) publishing() amqp.Publishing {
	p := v.Properties
	out := amqp.Publishing{
		ContentType: string(p.ContentType), ContentEncoding: string(p.ContentEncoding),
		DeliveryMode: p.DeliveryMode, Priority: p.Priority, CorrelationId: string(p.CorrelationID),
		ReplyTo: string(p.ReplyTo), Expiration: string(p.Expiration), MessageId: string(p.MessageID),
		Type: string(p.Type), UserId: string(p.UserID), AppId: string(p.AppID), Body: v.Body,
	}
	if p.Timestamp != 0 {
		out.Timestamp = time.Unix(p.Timestamp, 0)
	}
	if len(v.Headers)+v.NumberedHeaders > 0 {
		out.Headers = make(amqp.Table)
	}
	for name, field := range v.Headers {
		out.Headers[name] = field.value
	}
	for i := range v.NumberedHeaders {
		out.Headers[strconv.Itoa(i)] = nil
	}
	return out
}

// A vectorMessage is a message of an application.
type vectorMessage struct {
	ID         uuid.UUID
	Exchange   vectorText
	RoutingKey vectorText `json:"routing-key"`
	OrderKey   vectorText `json:"order-key"`
	StagedAt   int64      `json:"staged-at"`
	Carried    bool
	vectorContent
}

func (v *vectorMessage) message() bridge.Message {
	return bridge.Message{
		ID: v.ID, Exchange: string(v.Exchange), RoutingKey: string(v.RoutingKey), OrderKey: string(v.OrderKey), Publishing: v.publishing(),
	}
}

// A vectorParsed is a staged message as a verifier reads it. Its content is the receiver's message.
type vectorParsed struct {
	Exchange   vectorText
	RoutingKey vectorText `json:"routing-key"`
	OrderKey   vectorText `json:"order-key"`
	UserID     string     `json:"user-id"`
	StagedAt   int64      `json:"staged-at"`
	Carried    bool
	Restaged   bool
	vectorContent
}

func (v *vectorParsed) compare(d amqp.Delivery) error {
	got, err := wire.Parse(d)
	if err != nil {
		return err
	}
	return v.compareStaged(got)
}

func (v *vectorParsed) compareRecord(ledger uuid.UUID, record []byte) error {
	got, err := wire.ReadRecord(ledger, record)
	if err != nil {
		return err
	}
	return v.compareStaged(got)
}

func (v *vectorParsed) compareStaged(got wire.Staged) error {
	p := v.publishing()
	id, err := uuid.Parse(p.MessageId)
	if err != nil {
		return err
	}
	want := wire.Staged{
		Message: bridge.Message{ID: id, Exchange: string(v.Exchange), RoutingKey: string(v.RoutingKey), OrderKey: string(v.OrderKey), Publishing: p},
		Ledger:  got.Ledger, UserID: v.UserID, Carried: v.Carried, Restaged: v.Restaged,
	}
	if v.StagedAt != 0 {
		want.StagedAt = time.UnixMilli(v.StagedAt)
	}
	if len(got.Message.Publishing.Body) == 0 {
		got.Message.Publishing.Body = nil
	}
	return same("parsed", got, want)
}

// A vectorField is the value of a header: an object whose key is AMQP's letter for the type.
type vectorField struct{ value any }

func (v *vectorField) UnmarshalJSON(raw []byte) error {
	var typed map[string]json.RawMessage
	if err := json.Unmarshal(raw, &typed); err != nil {
		return err
	}
	if len(typed) != 1 {
		return fmt.Errorf("value %s: want one type", raw)
	}
	for kind, raw := range typed {
		value, err := fieldValue(kind, raw)
		if err != nil {
			return fmt.Errorf("value of type %q: %w", kind, err)
		}
		v.value = value
	}
	return nil
}

func fieldValue(kind string, raw json.RawMessage) (any, error) {
	switch kind {
	case "V":
		if string(raw) != "null" {
			return nil, errors.New("is not null")
		}
		return nil, nil
	case "t":
		return read[bool](raw)
	case "b":
		return read[int8](raw)
	case "B":
		return read[uint8](raw)
	case "s":
		return read[int16](raw)
	case "u":
		return read[uint16](raw)
	case "I":
		return read[int32](raw)
	case "i":
		return read[uint32](raw)
	case "l":
		return read[int64](raw)
	case "f":
		return read[float32](raw)
	case "d":
		return read[float64](raw)
	case "D":
		return read[amqp.Decimal](raw)
	case "T":
		seconds, err := read[int64](raw)
		return time.Unix(seconds, 0), err
	case "S":
		text, err := read[vectorText](raw)
		return string(text), err
	case "x":
		b, err := read[vectorBytes](raw)
		return []byte(b), err
	case "F":
		fields, err := read[map[string]vectorField](raw)
		table := make(amqp.Table, len(fields))
		for name, field := range fields {
			table[name] = field.value
		}
		return table, err
	case "A":
		return listValue(raw)
	}
	return nil, errors.New("is not known")
}

// listValue reads a list, or a list of one value that repeats.
func listValue(raw json.RawMessage) (any, error) {
	var long struct {
		Repeat vectorField
		Times  int
	}
	if decode(raw, &long) == nil {
		return slices.Repeat([]any{long.Repeat.value}, long.Times), nil
	}
	fields, err := read[[]vectorField](raw)
	list := make([]any, len(fields))
	for i, field := range fields {
		list[i] = field.value
	}
	return list, err
}

func read[T any](raw json.RawMessage) (value T, err error) {
	err = decode(raw, &value)
	return value, err
}
