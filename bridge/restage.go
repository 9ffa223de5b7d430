package bridge

import (
	"fmt"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
)

// restageBytes bounds the records in one group of Restage.
const restageBytes = 64 << 10

// Restage makes of parked messages what an Unpark's stage publishes to the staging
// queue: groups of them, and alone what is too large for a group. stagedAt is when
// this staging began, by the caller's clock, before the first of them is published
// (see Sweeper).
func Restage(ledger uuid.UUID, stagedAt time.Time, parked []Parked) ([]amqp.Publishing, error) {
	var all []amqp.Publishing
	var records [][]byte
	size := 0
	seal := func() error {
		if len(records) == 0 {
			return nil
		}
		group := Group(ledger, records...)
		group.Headers[HeaderStagedAt] = stagedAt.UnixMilli()
		if len(records) == 1 { // as large as a message may be: too large for a group
			alone, err := Members(amqp.Delivery{Headers: group.Headers, Body: group.Body})
			if err != nil {
				return fmt.Errorf("read parked message: %w", err)
			}
			group = republished(alone[0])
		}
		all = append(all, group)
		records, size = nil, 0
		return nil
	}
	for _, p := range parked {
		if len(records) == maxMembers || size+len(p.Message) > restageBytes {
			if err := seal(); err != nil {
				return nil, err
			}
		}
		records = append(records, p.Message)
		size += len(p.Message)
	}
	if err := seal(); err != nil {
		return nil, err
	}
	return all, nil
}

// ReadParked takes a parked message apart. ledger is that of the database in which it
// lies. The error wraps ErrMalformed.
func ReadParked(ledger uuid.UUID, p Parked) (Staged, error) {
	alone, err := Members(amqp.Delivery{
		Headers: amqp.Table{HeaderGroup: groupFormat, HeaderLedger: ledger.String()}, Body: p.Message,
	})
	if err != nil {
		return Staged{}, err
	}
	if len(alone) != 1 {
		return Staged{}, fmt.Errorf("%w: %d records in one parked message", ErrMalformed, len(alone))
	}
	return Parse(alone[0])
}

// republished is what was delivered, as it goes out once more.
func republished(d amqp.Delivery) amqp.Publishing {
	return amqp.Publishing{
		Headers:         d.Headers,
		ContentType:     d.ContentType,
		ContentEncoding: d.ContentEncoding,
		DeliveryMode:    amqp.Persistent,
		Priority:        d.Priority,
		CorrelationId:   d.CorrelationId,
		ReplyTo:         d.ReplyTo,
		MessageId:       d.MessageId,
		Timestamp:       d.Timestamp,
		Type:            d.Type,
		AppId:           d.AppId,
		Body:            d.Body,
	}
}
