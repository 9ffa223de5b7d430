package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/advice"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
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

// explain puts the variable before an error, and the fix after it.
func explain(err error) error {
	switch {
	case errors.Is(err, verifier.ErrNotDrained):
		return advice.With(err, "nothing is lost, but messages that were forwarded without their ack arrive twice; BRIDGE_DRAIN limits the drain")
	case errors.As(err, new(*tracesError)): // its text has variable and fix
		return err
	}
	variable, fix := fixFor(err)
	return advice.With(fmt.Errorf("%s: %w", variable, err), fix)
}

// fixFor returns the variable that an error is about, and the fix.
func fixFor(err error) (variable, fix string) {
	variable = named[ops.CauseOf(err)]
	_, fix = advice.Of(err)
	switch {
	case errors.Is(err, bridge.ErrNoSchema) && !errors.Is(err, bridge.ErrLaterSchema):
		fix = "name the database that the senders use, or create the tables with verifier -migrate"
	case errors.Is(err, database.ErrOwnTable):
		variable = "BRIDGE_OWN_TABLE"
	}
	return variable, fix
}

// advising adds the variable and the fix, which explain adds to an error at the start, to the
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
		variable, fix := fixFor(err)
		if fix == "" && ops.CauseOf(err) == ops.Database {
			fix = "check that the database runs; bridgectl doctor reports a right that the login lacks"
		}
		if line.AddAttrs(slog.String("variable", variable)); fix != "" {
			line.AddAttrs(slog.String("fix", fix))
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
	case errors.As(err, new(*tracesError)), errors.Is(err, database.ErrOwnTable), advice.Misuse(err):
		return exitMisused
	}
	return map[ops.Cause]int{ops.Database: exitDatabase, ops.Schema: exitSchema, ops.Proof: exitProof,
		ops.Broker: exitBroker, ops.Queue: exitBroker}[ops.CauseOf(err)]
}
