package versions

import (
	"context"
	"fmt"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// The common part of Latest, Ordered and HighWater.

// A VersionFunc returns the entity of an event, and the version of the entity in it. It must return
// the same values for every copy of a message.
//
// Each consumer name has its own entities. An entity's name has 1 to 255 bytes of UTF-8. If one
// consumer handles several kinds of entities, it includes the kind: "customer/17". The version is
// not negative. If the function returns an error or an invalid value, or panics, the message is
// dead-lettered with that reason.
type VersionFunc func(d amqp.Delivery) (entity string, version int64, err error)

// versionOf calls of. Its error is a refusal.
func versionOf(e *engine.Engine, d amqp.Delivery, of VersionFunc) (entity string, version int64, err error) {
	if err := engine.Readable(d); err != nil {
		return "", 0, err
	}
	err = e.RecoverPanic("version function", d.MessageId, func() (err error) {
		entity, version, err = of(d)
		return err
	})
	if err != nil {
		return "", 0, engine.Refusal(fmt.Errorf("read version: %w", err))
	}
	if err := engine.CheckKey(entity); err != nil {
		return "", 0, engine.Refusal(fmt.Errorf("read version: entity %w", err))
	}
	if version < 0 {
		return "", 0, engine.Refusal(fmt.Errorf("read version: %d of entity %q is negative", version, entity))
	}
	return entity, version, nil
}

// none is before every version.
const none = -1

// lockVersion locks the entity's mark and returns its version, or before if there is no mark yet.
func lockVersion(ctx context.Context, tx bridge.Tx, marks driver.Marks, consumer, entity string, before int64) (int64, error) {
	mark, err := marks.LockMark(ctx, tx, consumer, entity)
	if err != nil || mark == "" {
		return before, err
	}
	return versionIn(mark, consumer, entity)
}

func versionIn(mark, consumer, entity string) (int64, error) {
	version, err := strconv.ParseInt(mark, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the mark of entity %q is no version: another strategy uses the consumer name %q: %w", entity, consumer, err)
	}
	return version, nil
}

func setVersion(ctx context.Context, tx bridge.Tx, marks driver.Marks, consumer, entity string, version int64) error {
	return marks.SetMark(ctx, tx, consumer, entity, strconv.FormatInt(version, 10))
}
