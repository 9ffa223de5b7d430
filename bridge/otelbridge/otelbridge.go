// Package otelbridge has the OpenTelemetry helpers that packages otelsender, otelverifier and
// otelhandler share. Applications use these three.
package otelbridge

import (
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/twoqueue/twoqueue/bridge"
)

// Headers are a message's headers as a propagation.TextMapCarrier.
type Headers amqp.Table

// Get returns a header that is a string.
func (h Headers) Get(key string) string {
	switch value := h[key].(type) {
	case string:
		return value
	case []byte: // some clients send strings so
		return string(value)
	}
	return ""
}

// Set sets a header.
func (h Headers) Set(key, value string) { h[key] = value }

// Keys returns the names of all headers.
func (h Headers) Keys() []string {
	keys := make([]string, 0, len(h))
	for key := range h {
		keys = append(keys, key)
	}
	return keys
}

// Destination returns a target by the conventions for RabbitMQ: exchange:key, or one of the two if
// the other is empty.
func Destination(to bridge.Target) string {
	name := to.Exchange + ":" + to.RoutingKey
	return readable(strings.Trim(name, ":"))
}

// Attributes returns the attributes of one message to or from a target.
func Attributes(to bridge.Target, messageID string) []attribute.KeyValue {
	return []attribute.KeyValue{
		semconv.MessagingSystemRabbitMQ,
		semconv.MessagingRabbitMQDestinationRoutingKey(readable(to.RoutingKey)),
		semconv.MessagingMessageID(readable(messageID)),
	}
}

// readable keeps a name that is not UTF-8 from stopping the export of other spans.
func readable(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }
