// Package limits checks that AMQP 0-9-1 can carry a message. A message that it refuses would end
// the channel or the connection, since amqp091-go writes it unchecked.
package limits

import (
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// MaxShort is the length of AMQP's short strings: names, keys, properties.
const MaxShort = 255

// Publishing checks a message except its body.
func Publishing(exchange, routingKey string, p amqp.Publishing) error {
	if err := shortStrings(exchange, routingKey, p); err != nil {
		return err
	}
	if err := checkValue(p.Headers, 0); err != nil {
		return err
	}
	if err := p.Headers.Validate(); err != nil {
		return fmt.Errorf("field Publishing.Headers: %w", err)
	}
	return nil
}

// shortStrings checks the length of AMQP's short strings.
func shortStrings(exchange, routingKey string, p amqp.Publishing) error {
	for _, field := range [...]struct{ name, value string }{
		{"Exchange", exchange}, {"RoutingKey", routingKey},
		{"Publishing.ContentType", p.ContentType}, {"Publishing.ContentEncoding", p.ContentEncoding},
		{"Publishing.CorrelationId", p.CorrelationId}, {"Publishing.ReplyTo", p.ReplyTo},
		{"Publishing.Expiration", p.Expiration}, {"Publishing.MessageId", p.MessageId},
		{"Publishing.Type", p.Type}, {"Publishing.UserId", p.UserId}, {"Publishing.AppId", p.AppId},
	} {
		if len(field.value) > MaxShort {
			return fmt.Errorf("field %s has %d bytes: at most %d", field.name, len(field.value), MaxShort)
		}
	}
	return nil
}

// The headers that amqp091-go can read (maxFieldDepth and maxContainerElements in its read.go). It
// writes larger ones without an error. A delivery with larger ones ends the connection of its
// consumer, at each delivery, unless package unreadable has replaced it.
const (
	// MaxDepth is how deep tables and lists may be nested in the headers.
	MaxDepth = 32
	// MaxElements is how many elements each of them may have.
	MaxElements = 8192
)

// checkValue checks headers at every depth.
func checkValue(value any, depth int) error {
	switch v := value.(type) {
	case amqp.Table:
		if err := checkContainer(len(v), depth); err != nil {
			return err
		}
		for name, inner := range v {
			if len(name) > MaxShort { // it would break the connection in the middle of a frame
				return fmt.Errorf("header name of %d bytes: at most %d", len(name), MaxShort)
			}
			if err := checkValue(inner, depth+1); err != nil {
				return err
			}
		}
	case []any:
		if err := checkContainer(len(v), depth); err != nil {
			return err
		}
		for _, inner := range v {
			if err := checkValue(inner, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkContainer(elements, depth int) error {
	switch {
	case depth > MaxDepth:
		return fmt.Errorf("tables and lists in the headers are nested more than %d deep", MaxDepth)
	case elements > MaxElements:
		return fmt.Errorf("a table or list in the headers has %d elements: at most %d", elements, MaxElements)
	}
	return nil
}

// HeaderBytes is an upper bound of the size of the frame with headers and properties.
func HeaderBytes(p amqp.Publishing) int {
	const fixed = 64 // the frame's own fields, numbers, and the lengths of strings
	return fixed + tableBytes(p.Headers) + len(p.ContentType) + len(p.ContentEncoding) + len(p.CorrelationId) +
		len(p.ReplyTo) + len(p.Expiration) + len(p.MessageId) + len(p.Type) + len(p.UserId) + len(p.AppId)
}

// tableBytes is an upper bound of a table's encoded size.
func tableBytes(t amqp.Table) int {
	size := 4
	for name, value := range t {
		size += 1 + len(name) + valueBytes(value)
	}
	return size
}

func valueBytes(value any) int {
	switch v := value.(type) {
	case string:
		return 5 + len(v)
	case []byte:
		return 5 + len(v)
	case amqp.Table:
		return 1 + tableBytes(v)
	case []any:
		size := 5
		for _, element := range v {
			size += valueBytes(element)
		}
		return size
	default:
		return 16
	}
}
