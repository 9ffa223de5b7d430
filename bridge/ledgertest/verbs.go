package ledgertest

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A Verb is one verb of an inbox, with all its arguments.
type Verb struct {
	Name  string
	ByKey bool // it takes the message's key; else the consumer alone
	want  any  // the expected result; nil: any
	do    func(ctx context.Context, tx bridge.Tx) (any, error)
}

// Do executes the verb. Its result must be the expected one.
func (v Verb) Do(ctx context.Context, tx bridge.Tx) error {
	got, err := v.do(ctx, tx)
	if err == nil && v.want != nil && !reflect.DeepEqual(got, v.want) {
		err = fmt.Errorf("it is %.500v, must be %.500v", got, v.want)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", v.Name, err)
	}
	return nil
}

// Verbs returns all verbs of an inbox, for a message that is new to it, in an order in which each
// finds the rows that it needs: in one transaction, or each in one of its own that commits.
func Verbs(inbox driver.Inbox, consumer string, p driver.Pending) []Verb {
	bare, key, run := p, p.Key, p.Run
	bare.Message, p.Stored = nil, true
	lookUp := func(ctx context.Context, tx bridge.Tx) (any, error) {
		_, found, err := inbox.LookUp(ctx, tx, consumer, key)
		if found == nil {
			return nil, err
		}
		found.Since = time.Time{}
		return *found, err
	}
	claim := func(ctx context.Context, tx bridge.Tx) (any, error) {
		return inbox.Claim(ctx, tx, consumer, []string{key})
	}
	add := func(ctx context.Context, tx bridge.Tx) (any, error) {
		return inbox.AddPending(ctx, tx, consumer, bare, -time.Hour)
	}
	lock := func(ctx context.Context, tx bridge.Tx) (any, error) { return inbox.LockMark(ctx, tx, consumer, key) }
	return []Verb{
		{"look up a new key", true, nil, lookUp},
		{"claim", true, []string{key}, claim},
		{"claim again", true, nil, func(ctx context.Context, tx bridge.Tx) (any, error) {
			fresh, err := inbox.Claim(ctx, tx, consumer, []string{key})
			if err == nil && len(fresh) > 0 {
				err = fmt.Errorf("%q is new", fresh)
			}
			return nil, err
		}},
		{"add", true, true, add},
		{"release", true, true, func(ctx context.Context, tx bridge.Tx) (any, error) {
			return inbox.ReleasePending(ctx, tx, consumer, key, run)
		}},
		{"claim once more", true, []string{key}, claim},
		{"add again", true, true, add},
		{"attach", true, true, func(ctx context.Context, tx bridge.Tx) (any, error) {
			return inbox.AttachMessage(ctx, tx, consumer, key, run, p.Message)
		}},
		{"change", true, true, func(ctx context.Context, tx bridge.Tx) (any, error) {
			return inbox.ChangePending(ctx, tx, consumer, run, bare, -time.Minute)
		}},
		{"look up", true, p, lookUp},
		{"take", false, key, func(ctx context.Context, tx bridge.Tx) (any, error) {
			taken, err := inbox.TakePending(ctx, tx, consumer, p.State)
			if taken == nil {
				return nil, err
			}
			return taken.Key, err
		}},
		{"list", false, nil, func(ctx context.Context, tx bridge.Tx) (any, error) {
			return inbox.ListPending(ctx, tx, consumer, p.State, consumer, 10)
		}},
		{"count", false, nil, func(ctx context.Context, tx bridge.Tx) (any, error) { return inbox.CountPending(ctx, tx, consumer) }},
		{"doubt", false, nil, func(ctx context.Context, tx bridge.Tx) (any, error) { return inbox.DoubtOverdue(ctx, tx, consumer) }},
		{"remove another's", true, false, func(ctx context.Context, tx bridge.Tx) (any, error) {
			return inbox.RemovePending(ctx, tx, consumer, key, run+"'")
		}},
		{"remove", true, true, func(ctx context.Context, tx bridge.Tx) (any, error) {
			return inbox.RemovePending(ctx, tx, consumer, key, run)
		}},
		{"read claims", false, nil, func(ctx context.Context, tx bridge.Tx) (any, error) {
			return inbox.Claimed(ctx, tx, consumer, consumer, 10)
		}},
		{"forget", true, int64(1), func(ctx context.Context, tx bridge.Tx) (any, error) {
			return inbox.Forget(ctx, tx, consumer, []string{newName(), key}, -time.Minute)
		}},
		{"lock mark", true, "", lock},
		{"set mark", true, nil, func(ctx context.Context, tx bridge.Tx) (any, error) {
			return nil, inbox.SetMark(ctx, tx, consumer, key, key)
		}},
		{"lock mark again", true, key, lock},
		{"keep", true, true, func(ctx context.Context, tx bridge.Tx) (any, error) {
			return inbox.Keep(ctx, tx, consumer, key, 5, p.Message)
		}},
		{"count kept", true, 1, func(ctx context.Context, tx bridge.Tx) (any, error) { return inbox.CountKept(ctx, tx, consumer, key) }},
		{"first kept", true, p.Message, func(ctx context.Context, tx bridge.Tx) (any, error) {
			_, message, err := inbox.FirstKept(ctx, tx, consumer, key)
			return message, err
		}},
		{"list kept", false, nil, func(ctx context.Context, tx bridge.Tx) (any, error) {
			return inbox.KeptEntities(ctx, tx, consumer, 10)
		}},
		{"unkeep", true, nil, func(ctx context.Context, tx bridge.Tx) (any, error) {
			return nil, inbox.Unkeep(ctx, tx, consumer, key, 5)
		}},
	}
}
