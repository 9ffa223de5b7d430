package main

import (
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/email-gateway/internal/transport"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/endpoints"
	"github.com/twoqueue/twoqueue/idempotency"
)

// The errors of the first contact with a server.
type (
	brokerError struct{ error }
	mailError   struct{ error }
)

func (e *brokerError) Unwrap() error { return e.error }
func (e *mailError) Unwrap() error   { return e.error }

// remedies say which variable an error is about and what to do.
var remedies = []struct {
	err      error
	variable string
	mend     string
}{
	{endpoints.ErrAddress, "EMAIL_HTTP_ADDRESS", "name another address"},
	{transport.ErrLogin, "EMAIL_SMTP_USER", "correct it, or EMAIL_SMTP_PASSWORD"},
	{transport.ErrUnavailable, "EMAIL_SMTP_HOST", "see that the mail server runs, and that EMAIL_SMTP_PORT, EMAIL_SMTP_TLS and EMAIL_SMTP_CA_FILE are right"},
	{bridge.ErrCredentials, "EMAIL_AMQP_URL", "correct user, password or virtual host"},
	{bridge.ErrUnavailable, "EMAIL_AMQP_URL", "see that the broker runs, and that host and port are right"},
	{bridge.ErrBlocked, "EMAIL_AMQP_URL", "free the broker's memory or disk"},
	{database.ErrURL, "EMAIL_DATABASE_URL", ""},
	{database.ErrCredentials, "EMAIL_DATABASE_URL", "correct user or password"},
	{database.ErrUnreachable, "EMAIL_DATABASE_URL", "see that the database is there and runs, and that the URL is right"},
	{bridge.ErrNoSchema, "EMAIL_DATABASE_URL", "name the gateway's database, or create the tables with email-gateway migrate"},
}

// explain puts the variable before an error, and the mend behind it.
func explain(err error) error {
	for _, r := range remedies {
		switch {
		case !errors.Is(err, r.err):
		case r.mend == "":
			return fmt.Errorf("%s: %w", r.variable, err)
		default:
			return fmt.Errorf("%s: %w; %s", r.variable, err, r.mend)
		}
	}
	var refusal *amqp.Error
	switch {
	case errors.As(err, &refusal):
		return fmt.Errorf("EMAIL_AMQP_URL: %w; see that the login may configure, write and read the queues", err)
	case errors.As(err, new(*brokerError)): // the form of the URL; says what to do by itself
		return fmt.Errorf("EMAIL_AMQP_URL: %w", err)
	case errors.As(err, new(*mailError)):
		return fmt.Errorf("EMAIL_SMTP_HOST: %w", err)
	case errors.Is(err, idempotency.ErrNotPending):
		return fmt.Errorf("%w; see email-gateway doubtful list", err)
	case errors.Is(err, idempotency.ErrUnderWay):
		return fmt.Errorf("%w; it becomes doubtful if it is not heard of", err)
	case strings.HasPrefix(err.Error(), prefix+"_"): // names its variable by itself
		return err
	}
	return fmt.Errorf("EMAIL_DATABASE_URL: %w", err) // all that is left comes from there
}
