package main

import (
	"bytes"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/verifier"
	"github.com/twoqueue/twoqueue/verifier/ops"
)

// An error determines the cause in the metrics and the program's exit code.
func TestCausesAndExitCodes(t *testing.T) {
	for _, c := range []struct {
		err   error
		cause ops.Cause
		code  int
	}{
		{driver.ErrBadConn, ops.Database, exitDatabase},
		{database.ErrUnreachable, ops.Database, exitDatabase},
		{database.ErrNoDatabase, ops.Database, exitDatabase},
		{database.ErrCredentials, ops.Database, exitDatabase},
		{bridge.ErrNoSchema, ops.Schema, exitSchema},
		{bridge.ErrProof, ops.Proof, exitProof},
		{bridge.ErrNotPrimary, ops.Proof, exitProof},
		{bridge.ErrReadOnly, ops.Proof, exitProof},
		{bridge.ErrOtherLedger, ops.Proof, exitProof},
		{bridge.ErrUnavailable, ops.Broker, exitBroker},
		{bridge.ErrCredentials, ops.Broker, exitBroker},
		{bridge.ErrBlocked, ops.Broker, exitBroker},
		{&amqp.Error{Code: 403}, ops.Broker, exitBroker},
		{bridge.ErrURL, ops.Broker, exitMisused},
		{fmt.Errorf("%w: %w", bridge.ErrUnavailable, &fs.PathError{Op: "open", Path: "ca.pem", Err: fs.ErrNotExist}), ops.Broker, exitMisused},
		{&bridge.QueueMismatch{}, ops.Queue, exitBroker},
		{database.ErrURL, ops.Database, exitMisused},
		{&tracesError{errors.New("OTEL_X: wrong")}, ops.Database, exitMisused},
		{verifier.ErrNotDrained, ops.Database, exitNotDrained},
	} {
		err := fmt.Errorf("start verifier: %w", c.err)
		if got := ops.CauseOf(err); got != c.cause {
			t.Errorf("%v: cause %s, not %s", err, got, c.cause)
		}
		if got := exitCode(err); got != c.code {
			t.Errorf("%v: exit code %d, not %d", err, got, c.code)
		}
	}
}

func TestTheLogOfAnEndedSessionNamesTheFix(t *testing.T) {
	for _, c := range []struct {
		message string
		err     error
		want    string
	}{
		{"no session", driver.ErrBadConn, `variable=BRIDGE_DATABASE_URL fix="check that the database runs; bridgectl doctor`},
		{"no session", bridge.ErrNoSchema, `variable=BRIDGE_DATABASE_URL fix="name the database that the senders use`},
		{"session ended", bridge.ErrUnavailable, `variable=BRIDGE_AMQP_URL fix="check that the broker runs`},
		{"session ended", &bridge.QueueMismatch{}, "variable=BRIDGE_QUEUE\n"},
		{"side job fails", bridge.ErrUnavailable, "error=\"broker unavailable\"\n"},
	} {
		var log bytes.Buffer
		slog.New(advising{slog.NewTextHandler(&log, nil)}).Warn(c.message, "retry_in", time.Second, "error", c.err)
		if !strings.Contains(log.String(), c.want) {
			t.Errorf("the log says %s, not %s", log.String(), c.want)
		}
	}
}
