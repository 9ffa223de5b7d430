package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/email-gateway/internal/transport"
	"github.com/twoqueue/twoqueue/cmd/internal/advice"
	"github.com/twoqueue/twoqueue/cmd/internal/endpoints"
	"github.com/twoqueue/twoqueue/idempotency/pending"
)

// mailError is an error of the first contact with the mail server.
type mailError struct{ error }

func (e *mailError) Unwrap() error { return e.error }

// fixes are the variable and the fix of each error that package advice does not explain.
var fixes = []struct {
	err      error
	variable string
	fix      string
}{
	{endpoints.ErrAddress, "EMAIL_HTTP_ADDR", "name another address"},
	{transport.ErrLogin, "EMAIL_SMTP_USER", "correct EMAIL_SMTP_USER or EMAIL_SMTP_PASSWORD"},
	{transport.ErrUnavailable, "EMAIL_SMTP_HOST", "check that the mail server runs, and that EMAIL_SMTP_PORT, EMAIL_SMTP_TLS and EMAIL_SMTP_CA_FILE are right"},
	{bridge.ErrLaterSchema, "EMAIL_DATABASE_URL", "run the release that made the tables, or a later one"},
	{bridge.ErrNoSchema, "EMAIL_DATABASE_URL", "name the gateway's database, or create the tables with email-gateway migrate"},
}

// explain puts the variable before an error, and the fix after it.
func explain(err error) error {
	for _, r := range fixes {
		if errors.Is(err, r.err) {
			return advice.With(fmt.Errorf("%s: %w", r.variable, err), r.fix)
		}
	}
	from, fix := advice.Of(err)
	switch {
	case from == advice.Broker:
		if fix == advice.NoRight {
			fix = "let the login configure, write and read this queue, or declare the queue with a login that may: the gateway uses an existing queue as it is"
		}
		return advice.With(fmt.Errorf("EMAIL_AMQP_URL: %w", err), fix)
	case errors.As(err, new(*mailError)):
		return fmt.Errorf("EMAIL_SMTP_HOST: %w", err)
	case errors.Is(err, pending.ErrNotPending):
		return advice.With(err, "see email-gateway doubtful list")
	case errors.Is(err, pending.ErrUnderWay):
		return advice.With(err, "it becomes doubtful if no result is recorded in time")
	case strings.HasPrefix(err.Error(), prefix+"_"): // begins with its variable
		return err
	}
	return advice.With(fmt.Errorf("EMAIL_DATABASE_URL: %w", err), fix) // every other error comes from the database
}
