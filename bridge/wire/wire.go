package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/limits"
)

// The headers of a staged message: the wire format in the package's comment. The first three are
// required. The next four, and HeaderPriority, carry properties that a broker would act on in the
// staging queue.
const (
	HeaderLedger     = "x-bridge-ledger"      // the ledger's identity, a UUID's canonical text
	HeaderExchange   = "x-bridge-exchange"    // the target exchange, "" for the default exchange
	HeaderRoutingKey = "x-bridge-routing-key" // the target routing key

	HeaderExpiration = "x-bridge-expiration" // expiration in ms: would expire a committed message
	HeaderCC         = "x-bridge-cc"         // CC and BCC: would deliver copies before the commit
	HeaderBCC        = "x-bridge-bcc"
	HeaderUserID     = "x-bridge-user-id" // user-id: would be refused when the verifier forwards

	// HeaderOrderKey is the message's order key, if it has one.
	HeaderOrderKey = "x-bridge-order-key"

	// HeaderStagedAt is when the sender received the message from its caller, in ms since 1970,
	// before it recorded the ID. Without this header the time in the ID counts, so it is needed if
	// the ID is no UUIDv7 made for this message. See 'The sweep' in package driver.
	HeaderStagedAt = "x-bridge-staged-at"

	// HeaderCarried marks a message whose ledger row carries a copy of it: any value.
	HeaderCarried = "x-bridge-carried"

	// HeaderPriority holds the message's priority, a decimal number, while it is staged. Quorum
	// queues of RabbitMQ 4 act on a priority, so a message could overtake a marker (see Marker).
	HeaderPriority = "x-bridge-priority"

	// HeaderRestaged marks a message that a verifier has staged from its row: any value.
	HeaderRestaged = "x-bridge-restaged"

	// HeaderUnroutableSince is written by a verifier that sets a message aside: when its target was
	// first found missing, in ms since 1970.
	HeaderUnroutableSince = "x-bridge-unroutable-since"
	// HeaderAttempts is written beside it: how many attempts to forward the message failed.
	HeaderAttempts = "x-bridge-attempts"
	// HeaderNacks is written beside it: how often the message's exchange has nacked it.
	// HeaderNackedAt is the time of the last nack, in ms since 1970.
	HeaderNacks    = "x-bridge-nacks"
	HeaderNackedAt = "x-bridge-nacked-at"
	// HeaderTouchedAt is written beside it on a carried message: when a verifier last moved its
	// row's stage time on, in ms since 1970.
	HeaderTouchedAt = "x-bridge-touched-at"
	// HeaderSetAsideAt is when a verifier put the message into the waiting queue, in ms since 1970.
	HeaderSetAsideAt = "x-bridge-set-aside-at"

	headerPrefix = "x-bridge-"
)

// Limits of the wire format.
const (
	// maxHeaderBytes bounds all headers and properties of a message together. They must fit into
	// one AMQP frame (128 KiB by default), with room for the headers of the dead queue; a larger
	// frame would close the whole connection.
	maxHeaderBytes = 64 << 10
	// maxHeaders bounds the headers of a message, without headers inside tables.
	maxHeaders = 1000
	// maxExpiration is RabbitMQ's limit: ten years in ms. A larger one closes the publisher's
	// channel.
	maxExpiration = 10 * 365 * 24 * 60 * 60 * 1000
)

// addedByBroker are the headers that queues add to their messages: counts of deliveries (RabbitMQ
// 4.3 adds x-acquired-count to a redelivered message, and x-delivery-count only to one whose
// processing has failed) and the history of dead letters (x-last-death- since 4.0). From 4.0 on a
// queue leaves such a header as it was published until it adds one of its own (measured on 4.0.5
// and 4.3.6): so the receiver would see the counts of the staging queue. Nothing else is added
// between a sender and a verifier: x-stream-offset comes from streams, which Declare refuses, and
// annotations like x-opt-rabbitmq-sent-time from interceptors that an operator has configured,
// which work on the target's queue too (RabbitMQ's guide 'Intercepting Messages').
var addedByBroker = []string{
	"x-delivery-count", "x-acquired-count", "x-death",
	"x-first-death-exchange", "x-first-death-queue", "x-first-death-reason",
	"x-last-death-exchange", "x-last-death-queue", "x-last-death-reason",
}

// Staged is a message on its way through the staging queue.
type Staged struct {
	bridge.Message           // Publishing is the final message
	Ledger         uuid.UUID // identity of the ledger that judges it
	UserID         string    // the user-id that the sender wanted, if any
	// StagedAt is when the sender received the message; zero if neither header nor ID has the time.
	StagedAt time.Time
	Restaged bool // a verifier staged it from its row (HeaderRestaged)
	Carried  bool // its ledger row holds a copy of it (HeaderCarried)
}

// Encode returns the staged form of m. If there is none, the error wraps bridge.ErrInvalidMessage
// and gives the reason. m.ID must not be zero: a sender fills it in. Encode does not change m or
// anything it refers to. The body is shared, not copied. If the ID is no UUIDv7 of this moment, add
// HeaderStagedAt.
func Encode(m bridge.Message, ledger uuid.UUID) (amqp.Publishing, error) {
	if err := validate(m); err != nil {
		return amqp.Publishing{}, fmt.Errorf("%w: %w", bridge.ErrInvalidMessage, err)
	}
	return Staged{Message: m, Ledger: ledger, UserID: m.Publishing.UserId, StagedAt: MadeAt(m.ID)}.Publishing(), nil
}

// Publishing returns the staged form, as it is published to a staging queue.
func (s Staged) Publishing() amqp.Publishing {
	p := s.Message.Publishing
	p.MessageId = s.ID.String()
	p.DeliveryMode = amqp.Persistent
	p.Headers = make(amqp.Table, len(p.Headers)+4)
	maps.Copy(p.Headers, s.Message.Publishing.Headers)
	p.Headers[HeaderLedger] = s.Ledger.String()
	p.Headers[HeaderExchange] = s.Exchange
	p.Headers[HeaderRoutingKey] = s.RoutingKey
	if p.Expiration != "" {
		p.Headers[HeaderExpiration] = p.Expiration
		p.Expiration = ""
	}
	if p.Priority != 0 {
		p.Headers[HeaderPriority] = strconv.Itoa(int(p.Priority))
		p.Priority = 0
	}
	if s.UserID != "" {
		p.Headers[HeaderUserID] = s.UserID
	}
	if s.OrderKey != "" {
		p.Headers[HeaderOrderKey] = s.OrderKey
	}
	if !s.StagedAt.IsZero() && !s.StagedAt.Equal(MadeAt(s.ID)) {
		p.Headers[HeaderStagedAt] = s.StagedAt.UnixMilli()
	}
	if s.Restaged {
		p.Headers[HeaderRestaged] = true
	}
	if s.Carried {
		p.Headers[HeaderCarried] = true
	}
	p.UserId = ""
	rename(p.Headers, "CC", HeaderCC)
	rename(p.Headers, "BCC", HeaderBCC)
	return p
}

// Parse reads a staged message. Its error wraps bridge.ErrMalformed and names the fault; such a
// message cannot be judged. The body is shared with d.
func Parse(d amqp.Delivery) (Staged, error) {
	s, err := parse(d)
	if err != nil {
		return Staged{}, fmt.Errorf("%w: %w", bridge.ErrMalformed, err)
	}
	return s, nil
}

func parse(d amqp.Delivery) (s Staged, err error) {
	if text, ok := d.Headers[headerUnreadable].(string); ok {
		return s, errors.New(text)
	}
	if s.ID, err = parseUUID(d.MessageId); err != nil {
		return s, fmt.Errorf("property message-id: %w", err)
	}
	text, err := stringHeader(d.Headers, HeaderLedger, true)
	if err != nil {
		return s, err
	}
	if s.Ledger, err = parseUUID(text); err != nil {
		return s, fmt.Errorf("header %s: %w", HeaderLedger, err)
	}
	if s.Exchange, err = stringHeader(d.Headers, HeaderExchange, true); err != nil {
		return s, err
	}
	if s.RoutingKey, err = stringHeader(d.Headers, HeaderRoutingKey, true); err != nil {
		return s, err
	}
	if s.UserID, err = stringHeader(d.Headers, HeaderUserID, false); err != nil {
		return s, err
	}
	if s.OrderKey, err = stringHeader(d.Headers, HeaderOrderKey, false); err != nil {
		return s, err
	}
	priority, err := parsePriority(d)
	if err != nil {
		return s, fmt.Errorf("header %s: %w", HeaderPriority, err)
	}
	if _, ok := d.Headers[HeaderOrderKey]; ok {
		if err := validateOrder(s.OrderKey, priority); err != nil {
			return s, fmt.Errorf("header %s: %w", HeaderOrderKey, err)
		}
	}
	s.StagedAt = MadeAt(s.ID)
	if at, ok := d.Headers[HeaderStagedAt].(int64); ok {
		s.StagedAt = time.UnixMilli(at)
	}
	_, s.Restaged = d.Headers[HeaderRestaged]
	_, s.Carried = d.Headers[HeaderCarried]
	expiration, err := stringHeader(d.Headers, HeaderExpiration, false)
	if err != nil {
		return s, err
	}
	if expiration == "" {
		expiration = d.Expiration
	}
	headers, err := receiversHeaders(d.Headers)
	if err != nil {
		return s, err
	}
	p := Republished(d)
	p.Headers, p.Expiration, p.Priority, p.MessageId = headers, expiration, priority, strings.ToLower(d.MessageId)
	s.Message.Publishing = p
	return s, validateTarget(s.Message)
}

// parsePriority returns the priority for the receiver. A message without the header comes from an
// older sender, and keeps its own priority.
func parsePriority(d amqp.Delivery) (uint8, error) {
	value, ok := d.Headers[HeaderPriority]
	if !ok {
		return d.Priority, nil
	}
	text, ok := value.(string)
	if !ok {
		return 0, fmt.Errorf("is %T, not a string", value)
	}
	priority, err := strconv.ParseUint(text, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("%s: not a number from 0 to 255", strconv.Quote(text))
	}
	return uint8(priority), nil
}

// CopyKeys returns the routing keys of the CC and BCC headers. The target exchange routes a copy by
// each of them too.
func (s Staged) CopyKeys() []string {
	var keys []string
	for _, name := range []string{"CC", "BCC"} {
		list, _ := s.Message.Publishing.Headers[name].([]any)
		for _, key := range list {
			if text, ok := key.(string); ok {
				keys = append(keys, text)
			}
		}
	}
	return keys
}

func validate(m bridge.Message) error {
	p := m.Publishing
	if m.ID == uuid.Nil {
		return errors.New("field ID is zero")
	}
	if p.MessageId != "" && p.MessageId != m.ID.String() {
		return errors.New("field Publishing.MessageId differs from ID; leave it empty")
	}
	if p.ReplyTo == "amq.rabbitmq.reply-to" {
		return errors.New("field Publishing.ReplyTo: direct reply-to works on the sender's own channel only; name a queue")
	}
	if m.Target().DirectReply() {
		return errors.New("field RoutingKey: a direct reply-to is no queue, and the broker does not report whether the message arrived; name a queue")
	}
	for _, key := range (Staged{Message: m}).CopyKeys() {
		if (bridge.Target{Exchange: m.Exchange, RoutingKey: key}).DirectReply() {
			return errors.New("header CC or BCC: a direct reply-to is no queue; name queues")
		}
	}
	for name := range p.Headers {
		if strings.HasPrefix(name, headerPrefix) {
			return fmt.Errorf("header %s: names with %s are reserved", name, headerPrefix)
		}
	}
	if err := limits.Publishing(m.Exchange, m.RoutingKey, p); err != nil {
		return err
	}
	if m.OrderKey != "" {
		if err := validateOrder(m.OrderKey, p.Priority); err != nil {
			return fmt.Errorf("field OrderKey: %w", err)
		}
	}
	switch {
	case m.NotBefore.IsZero():
	case m.OrderKey != "":
		return errors.New("field NotBefore: the message has an order key too, and later messages of the key would overtake it while it waits")
	case m.NotBefore.UTC().Add(time.Millisecond).Year() > 9999: // ledgers round up to the millisecond
		return errors.New("field NotBefore: is after the year 9999")
	}
	// The bytes of the receiver's message count: it has the message-id, and no user-id.
	m.Publishing.MessageId, m.Publishing.UserId = m.ID.String(), ""
	return validateTarget(m)
}

// validateOrder checks the order key of a message. A quorum queue of RabbitMQ 4.3.6 delivers a
// message of priority 9 before others (measured): in an ordered queue it would overtake the
// messages of its key.
func validateOrder(key string, priority uint8) error {
	switch {
	case key == "" || len(key) > limits.MaxShort:
		return fmt.Errorf("has %d bytes: must be between 1 and %d", len(key), limits.MaxShort)
	case strings.ContainsRune(key, 0):
		return errors.New("contains a NUL")
	case priority != 0:
		return errors.New("the message has a priority too, which contradicts any order")
	}
	return nil
}

// validateTarget refuses a message that would make the broker close the channel, or refuse it, when
// it is published to its target.
func validateTarget(m bridge.Message) error {
	p := m.Publishing
	if m.Exchange == "" && m.RoutingKey == "" {
		return errors.New("no target: exchange and routing key are empty")
	}
	if len(m.Exchange) > limits.MaxShort || len(m.RoutingKey) > limits.MaxShort {
		return fmt.Errorf("target: exchange and routing key have at most %d bytes", limits.MaxShort)
	}
	if p.Expiration != "" {
		if ms, err := strconv.ParseUint(p.Expiration, 10, 64); err != nil || ms > maxExpiration {
			return fmt.Errorf("expiration %s: not a number of milliseconds, at most %d", strconv.Quote(p.Expiration), uint64(maxExpiration))
		}
	}
	for _, name := range []string{"CC", "BCC"} {
		if value, ok := p.Headers[name]; ok {
			if err := validateCopies(value); err != nil {
				return fmt.Errorf("header %s: %w", name, err)
			}
		}
	}
	if n := len(p.Headers); n > maxHeaders {
		return fmt.Errorf("%d headers: at most %d", n, maxHeaders)
	}
	if size := limits.HeaderBytes(p); size > maxHeaderBytes {
		return fmt.Errorf("headers and properties have %d bytes: at most %d", size, maxHeaderBytes)
	}
	return nil
}

func validateCopies(value any) error {
	list, ok := value.([]any)
	if !ok {
		return fmt.Errorf("is %T, not a list of routing keys ([]any of string)", value)
	}
	for _, key := range list {
		if text, ok := key.(string); !ok || len(text) > limits.MaxShort {
			return fmt.Errorf("a routing key must be a string of at most %d bytes", limits.MaxShort)
		}
	}
	return nil
}

// parseUUID accepts only the canonical text of 36 characters.
func parseUUID(text string) (uuid.UUID, error) {
	if text == "" {
		return uuid.Nil, errors.New("missing")
	}
	id, err := uuid.Parse(text)
	if err != nil || len(text) != 36 || id == uuid.Nil {
		return uuid.Nil, errors.New("not a UUID in its canonical text")
	}
	return id, nil
}

// MadeAt returns the time in a UUIDv7, to the millisecond; zero for other IDs.
func MadeAt(id uuid.UUID) time.Time {
	if id.Version() != 7 {
		return time.Time{}
	}
	return time.UnixMilli(int64(binary.BigEndian.Uint64(id[:8]) >> 16))
}

func stringHeader(headers amqp.Table, name string, required bool) (string, error) {
	value, ok := headers[name]
	if !ok {
		if required {
			return "", fmt.Errorf("header %s: missing", name)
		}
		return "", nil
	}
	text, ok := value.(string)
	if !ok {
		return "", fmt.Errorf("header %s: is %T, not a string", name, value)
	}
	return text, nil
}

// receiversHeaders returns the headers for the receiver: without the bridge's and the broker's, and
// with the copies' keys as CC and BCC again. It returns nil if none are left.
func receiversHeaders(staged amqp.Table) (amqp.Table, error) {
	var headers amqp.Table
	for name, value := range staged {
		switch {
		case name == "CC" || name == "BCC":
			return nil, fmt.Errorf("header %s: must travel as %s%s", name, headerPrefix, strings.ToLower(name))
		case name == HeaderCC:
			name = "CC"
		case name == HeaderBCC:
			name = "BCC"
		case strings.HasPrefix(name, headerPrefix), slices.Contains(addedByBroker, name):
			continue
		}
		if headers == nil {
			headers = make(amqp.Table, len(staged))
		}
		headers[name] = value
	}
	return headers, nil
}

func rename(headers amqp.Table, from, to string) {
	if value, ok := headers[from]; ok {
		headers[to] = value
		delete(headers, from)
	}
}
