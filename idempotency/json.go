package idempotency

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A storedMessage is a message as an inbox kept it before release 0.1.0: JSON. It is still
// read, and written no more.
type storedMessage struct {
	Exchange        string                 `json:"exchange"`
	RoutingKey      string                 `json:"routing_key"`
	MessageID       string                 `json:"message_id"`
	ContentType     string                 `json:"content_type"`
	ContentEncoding string                 `json:"content_encoding"`
	DeliveryMode    uint8                  `json:"delivery_mode"`
	Priority        uint8                  `json:"priority"`
	CorrelationID   string                 `json:"correlation_id"`
	ReplyTo         string                 `json:"reply_to"`
	Expiration      string                 `json:"expiration"`
	Timestamp       *int64                 `json:"timestamp"` // seconds since 1970, as in AMQP, which goes beyond what JSON's times can say
	Type            string                 `json:"type"`
	UserID          string                 `json:"user_id"`
	AppID           string                 `json:"app_id"`
	Headers         map[string]storedValue `json:"headers"`
	Body            []byte                 `json:"body"`
}

// A storedValue is a header's value with its type, which JSON alone would lose.
type storedValue struct {
	Type  string                 `json:"type"`
	Value string                 `json:"value"`
	List  []storedValue          `json:"list"`
	Table map[string]storedValue `json:"table"`
}

func decodeJSON(stored []byte) (amqp.Delivery, error) {
	var m storedMessage
	if err := json.Unmarshal(stored, &m); err != nil {
		return amqp.Delivery{}, err
	}
	headers, err := loadTable(m.Headers)
	if err != nil {
		return amqp.Delivery{}, err
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
