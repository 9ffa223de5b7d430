package engine

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// A Keys is an Engine that claims keys in an inbox, and purges the old ones. In memory it also
// keeps the position of its purge.
type Keys struct {
	*Engine
	Inbox driver.Claims

	purge purge
}

// NewKeys returns a Keys. Its error names the wrong argument or option.
func NewKeys(inbox driver.Claims, consumer, optionsName string, opts Options) (*Keys, error) {
	if inbox == nil {
		return nil, errors.New("inbox is nil")
	}
	e, err := New(inbox, consumer, optionsName, opts)
	if err != nil {
		return nil, err
	}
	return &Keys{Engine: e, Inbox: inbox}, nil
}

// Key returns the key of d, or a Refusal.
func (e *Keys) Key(d amqp.Delivery) (key string, err error) {
	if err := Readable(d); err != nil {
		return "", err
	}
	if e.Opts.Key == nil {
		if err := CheckKey(d.MessageId); err != nil {
			return "", Refusal(fmt.Errorf("message ID %w", err))
		}
		return d.MessageId, nil
	}
	err = e.RecoverPanic(e.Option("Key"), d.MessageId, func() (err error) {
		key, err = e.Opts.Key(d)
		return err
	})
	if err != nil {
		return "", Refusal(fmt.Errorf("find the message's key: %w", err))
	}
	if err := CheckKey(key); err != nil {
		return "", Refusal(fmt.Errorf("the message's key %w", err))
	}
	return key, nil
}

// Readable returns a Refusal if d is the record of a message whose headers could not be read.
func Readable(d amqp.Delivery) error {
	if !wire.Unreadable(d) {
		return nil
	}
	_, err := wire.Parse(d) // returns the reason
	return Refusal(fmt.Errorf("message cannot be read: %w", err))
}

// Claim claims key in tx, and refuses a new one that is too old to be judged.
func (e *Keys) Claim(ctx context.Context, tx bridge.Tx, key string) (bool, error) {
	keys, err := e.Inbox.Claim(ctx, tx, e.Consumer, []string{key})
	fresh := len(keys) == 1
	if fresh && err == nil {
		err = e.JudgeAge(key)
	}
	return fresh, err
}
