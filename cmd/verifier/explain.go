package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/mend"
	"github.com/twoqueue/twoqueue/verifier"
	"github.com/twoqueue/twoqueue/verifier/ops"
)

// tracesError is an error whose text begins with its variable.
type tracesError struct{ error }

func (e *tracesError) Unwrap() error { return e.error }

// named is the variable for each cause of an error.
var named = map[ops.Cause]string{
	ops.Database: "BRIDGE_DATABASE_URL",
	ops.Schema:   "BRIDGE_DATABASE_URL",
	ops.Proof:    "BRIDGE_DATABASE_URL",
	ops.Broker:   "BRIDGE_AMQP_URL",
	ops.Queue:    "BRIDGE_QUEUE",
}

// explain puts the variable before an error, and the remedy after it.
func explain(err error) error {
	switch {
	case errors.Is(err, verifier.ErrNotDrained):
		return mend.With(err, "nothing is lost, but messages that were forwarded without their ack arrive twice; BRIDGE_DRAIN limits the drain")
	case errors.As(err, new(*tracesError)): // its text has variable and remedy
		return err
	}
	variable, remedy := advice(err)
	return mend.With(fmt.Errorf("%s: %w", variable, err), remedy)
}

// advice returns the variable that an error is about, and the remedy.
func advice(err error) (variable, remedy string) {
	variable = named[ops.CauseOf(err)]
	_, remedy = mend.Of(err)
	switch {
	case errors.Is(err, bridge.ErrNoSchema) && !errors.Is(err, bridge.ErrLaterSchema):
		remedy = "name the database that the senders use, or create the tables with verifier -migrate"
	case errors.Is(err, database.ErrOwnTable):
		variable = "BRIDGE_OWN_TABLE"
	}
	return variable, remedy
}

// advising adds the variable and the remedy, which explain adds to an error at the start, to the
// log's lines about sessions.
type advising struct{ slog.Handler }

func (a advising) Handle(ctx context.Context, line slog.Record) error {
	if line.Message != "no session" && line.Message != "session ended" {
		return a.Handler.Handle(ctx, line)
	}
	line = line.Clone()
	line.Attrs(func(attribute slog.Attr) bool {
		err, is := attribute.Value.Any().(error)
		if !is {
			return true
		}
		variable, remedy := advice(err)
		if remedy == "" && ops.CauseOf(err) == ops.Database {
			remedy = "check that the database runs; bridgectl doctor reports a right that the login lacks"
		}
		if line.AddAttrs(slog.String("variable", variable)); remedy != "" {
			line.AddAttrs(slog.String("mend", remedy))
		}
		return false
	})
	return a.Handler.Handle(ctx, line)
}

// exitCode returns the exit code for an error.
func exitCode(err error) int {
	switch {
	case errors.Is(err, verifier.ErrNotDrained):
		return exitNotDrained
	case errors.As(err, new(*tracesError)), errors.Is(err, database.ErrOwnTable), mend.Misuse(err):
		return exitMisused
	}
	return map[ops.Cause]int{ops.Database: exitDatabase, ops.Schema: exitSchema, ops.Proof: exitProof,
		ops.Broker: exitBroker, ops.Queue: exitBroker}[ops.CauseOf(err)]
}
