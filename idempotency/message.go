package idempotency

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A storedMessage is a message as the database keeps it: JSON, which an operator can
// read. What belongs to one delivery of it (tag, channel, redelivered) is left out.
type storedMessage struct {
	Exchange        string                 `json:"exchange,omitempty"`
	RoutingKey      string                 `json:"routing_key,omitempty"`
	MessageID       string                 `json:"message_id,omitempty"`
	ContentType     string                 `json:"content_type,omitempty"`
	ContentEncoding string                 `json:"content_encoding,omitempty"`
	DeliveryMode    uint8                  `json:"delivery_mode,omitempty"`
	Priority        uint8                  `json:"priority,omitempty"`
	CorrelationID   string                 `json:"correlation_id,omitempty"`
	ReplyTo         string                 `json:"reply_to,omitempty"`
	Expiration      string                 `json:"expiration,omitempty"`
	Timestamp       *int64                 `json:"timestamp,omitempty"` // seconds since 1970, as in AMQP, which goes beyond what JSON's times can say
	Type            string                 `json:"type,omitempty"`
	UserID          string                 `json:"user_id,omitempty"`
	AppID           string                 `json:"app_id,omitempty"`
	Headers         map[string]storedValue `json:"headers,omitzero"`
	Body            []byte                 `json:"body"`
}

// A storedValue is a header's value with its type, which JSON alone would lose.
type storedValue struct {
	Type  string                 `json:"type"`
	Value string                 `json:"value,omitempty"`
	List  []storedValue          `json:"list,omitempty"`
	Table map[string]storedValue `json:"table,omitzero"`
}

// storable returns d as it is stored, or a refusal.
func (g *Guard) storable(d amqp.Delivery) ([]byte, error) {
	message, err := encodeMessage(d)
	if err == nil && len(message) > g.opts.MaxStored {
		err = fmt.Errorf("the message would take %d bytes to store, more than Options.MaxStored %d", len(message), g.opts.MaxStored)
	}
	if err != nil {
		return nil, &refusal{err}
	}
	return message, nil
}

// encodeMessage returns what decodeMessage makes a delivery of. It fails for a header
// of a type that AMQP does not have, which no broker delivers.
func encodeMessage(d amqp.Delivery) ([]byte, error) {
	headers, err := storeTable(d.Headers)
	if err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	m := storedMessage{
		Exchange: d.Exchange, RoutingKey: d.RoutingKey, MessageID: d.MessageId,
		ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode, Priority: d.Priority,
		CorrelationID: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: d.Expiration,
		Type: d.Type, UserID: d.UserId, AppID: d.AppId, Headers: headers, Body: d.Body,
	}
	if !d.Timestamp.IsZero() {
		m.Timestamp = new(d.Timestamp.Unix())
	}
	return json.Marshal(m)
}

// decodeMessage returns a delivery that has all of the message and nothing of its
// way: Redelivered is false, and to ack it is an error.
func decodeMessage(stored []byte) (amqp.Delivery, error) {
	var m storedMessage
	if err := json.Unmarshal(stored, &m); err != nil {
		return amqp.Delivery{}, fmt.Errorf("decode message: %w", err)
	}
	headers, err := loadTable(m.Headers)
	if err != nil {
		return amqp.Delivery{}, fmt.Errorf("decode message: %w", err)
	}
	d := amqp.Delivery{
		Exchange: m.Exchange, RoutingKey: m.RoutingKey, MessageId: m.MessageID,
		ContentType: m.ContentType, ContentEncoding: m.ContentEncoding, DeliveryMode: m.DeliveryMode, Priority: m.Priority,
		CorrelationId: m.CorrelationID, ReplyTo: m.ReplyTo, Expiration: m.Expiration,
		Type: m.Type, UserId: m.UserID, AppId: m.AppID, Headers: headers, Body: m.Body,
	}
	if m.Timestamp != nil {
		d.Timestamp = time.Unix(*m.Timestamp, 0)
	}
	return d, nil
}

func storeTable(table amqp.Table) (map[string]storedValue, error) {
	if table == nil {
		return nil, nil
	}
	stored := make(map[string]storedValue, len(table))
	for name, value := range table {
		v, err := storeValue(value)
		if err != nil {
			return nil, fmt.Errorf("header %q: %w", name, err)
		}
		stored[name] = v
	}
	return stored, nil
}

func storeValue(value any) (v storedValue, err error) {
	switch value := value.(type) {
	case nil:
		return storedValue{Type: "void"}, nil
	case string:
		if !utf8.ValidString(value) { // which JSON has no place for
			return storedValue{Type: "string, base64", Value: base64.StdEncoding.EncodeToString([]byte(value))}, nil
		}
		return storedValue{Type: "string", Value: value}, nil
	case []byte:
		return storedValue{Type: "bytes", Value: base64.StdEncoding.EncodeToString(value)}, nil
	case bool, int8, uint8, int16, uint16, int32, uint32, int64, int:
		return storedValue{Type: fmt.Sprintf("%T", value), Value: fmt.Sprint(value)}, nil
	case float32:
		return storedValue{Type: "float32", Value: strconv.FormatFloat(float64(value), 'g', -1, 32)}, nil
	case float64:
		return storedValue{Type: "float64", Value: strconv.FormatFloat(value, 'g', -1, 64)}, nil
	case time.Time:
		return storedValue{Type: "time", Value: strconv.FormatInt(value.Unix(), 10)}, nil
	case amqp.Decimal:
		return storedValue{Type: "decimal", Value: fmt.Sprintf("%d/%d", value.Value, value.Scale)}, nil
	case []any:
		v = storedValue{Type: "list", List: make([]storedValue, len(value))}
		for i, one := range value {
			if v.List[i], err = storeValue(one); err != nil {
				return v, err
			}
		}
		return v, nil
	case amqp.Table:
		v = storedValue{Type: "table"}
		v.Table, err = storeTable(value)
		return v, err
	}
	return v, fmt.Errorf("value of type %T", value)
}

func loadTable(stored map[string]storedValue) (amqp.Table, error) {
	if stored == nil {
		return nil, nil
	}
	table := make(amqp.Table, len(stored))
	for name, v := range stored {
		value, err := v.load()
		if err != nil {
			return nil, fmt.Errorf("header %q: %w", name, err)
		}
		table[name] = value
	}
	return table, nil
}

func (v storedValue) load() (any, error) {
	switch v.Type {
	case "void":
		return nil, nil
	case "string":
		return v.Value, nil
	case "string, base64":
		text, err := base64.StdEncoding.DecodeString(v.Value)
		return string(text), err
	case "bytes":
		return base64.StdEncoding.DecodeString(v.Value)
	case "bool":
		return strconv.ParseBool(v.Value)
	case "int8":
		n, err := strconv.ParseInt(v.Value, 10, 8)
		return int8(n), err
	case "uint8":
		n, err := strconv.ParseUint(v.Value, 10, 8)
		return uint8(n), err
	case "int16":
		n, err := strconv.ParseInt(v.Value, 10, 16)
		return int16(n), err
	case "uint16":
		n, err := strconv.ParseUint(v.Value, 10, 16)
		return uint16(n), err
	case "uint32":
		n, err := strconv.ParseUint(v.Value, 10, 32)
		return uint32(n), err
	case "int32":
		n, err := strconv.ParseInt(v.Value, 10, 32)
		return int32(n), err
	case "int64":
		return strconv.ParseInt(v.Value, 10, 64)
	case "int":
		return strconv.Atoi(v.Value)
	case "float32":
		f, err := strconv.ParseFloat(v.Value, 32)
		return float32(f), err
	case "float64":
		return strconv.ParseFloat(v.Value, 64)
	case "time":
		seconds, err := strconv.ParseInt(v.Value, 10, 64)
		return time.Unix(seconds, 0), err
	case "decimal":
		value, scale, _ := strings.Cut(v.Value, "/")
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil {
			return nil, err
		}
		s, err := strconv.ParseUint(scale, 10, 8)
		return amqp.Decimal{Scale: uint8(s), Value: int32(n)}, err
	case "list":
		list := make([]any, len(v.List))
		for i, one := range v.List {
			value, err := one.load()
			if err != nil {
				return nil, err
			}
			list[i] = value
		}
		return list, nil
	case "table":
		table, err := loadTable(v.Table)
		if table == nil {
			table = amqp.Table{}
		}
		return table, err
	}
	return nil, fmt.Errorf("unknown type %q", v.Type)
}
