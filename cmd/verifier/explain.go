package main

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
)

// brokerError is an error of the first contact with the broker.
type brokerError struct{ error }

// addressError: a server's address cannot be had.
type addressError struct {
	variable string
	error
}

// tracesError names its variable by itself.
type tracesError struct{ error }

func (e *brokerError) Unwrap() error  { return e.error }
func (e *addressError) Unwrap() error { return e.error }
func (e *tracesError) Unwrap() error  { return e.error }

// remedies say which variable an error is about and what to do.
var remedies = []struct {
	err      error
	variable string
	mend     string
}{
	{bridge.ErrCredentials, "BRIDGE_AMQP_URL", "correct user, password or virtual host"},
	{bridge.ErrUnavailable, "BRIDGE_AMQP_URL", "see that the broker runs, and that host and port are right"},
	{bridge.ErrBlocked, "BRIDGE_AMQP_URL", "free the broker's memory or disk"},
	{database.ErrURL, "BRIDGE_DATABASE_URL", ""},
	{database.ErrCredentials, "BRIDGE_DATABASE_URL", "correct user or password, or the client's certificate"},
	{database.ErrUnreachable, "BRIDGE_DATABASE_URL", "see that the database is there and runs, and that the URL is right"},
	{bridge.ErrNoSchema, "BRIDGE_DATABASE_URL", "name the database that the senders use, or create the tables with verifier -migrate"},
	{bridge.ErrNotPrimary, "BRIDGE_DATABASE_URL", "name the primary, with a login that may write"},
	{bridge.ErrOtherLedger, "BRIDGE_DATABASE_URL", "see that it always leads to the same database"},
	{bridge.ErrProof, "BRIDGE_DATABASE_URL", "name the primary itself, without a proxy that changes how it locks"},
}

// explain puts the variable before an error, and the mend behind it.
func explain(err error) error {
	for _, r := range remedies {
		switch mend := cmp.Or(tlsMend(err), r.mend); {
		case !errors.Is(err, r.err):
		case mend == "":
			return fmt.Errorf("%s: %w", r.variable, err)
		default:
			return fmt.Errorf("%s: %w; %s", r.variable, err, mend)
		}
	}
	var mismatch *bridge.QueueMismatch
	var refusal *amqp.Error
	var address *addressError
	switch {
	case errors.As(err, &address):
		return fmt.Errorf("%s: %w; end the process that has it, or name another one", address.variable, err)
	case errors.Is(err, errNotDrained), errors.As(err, new(*tracesError)): // say what to do by themselves
		return err
	case errors.As(err, &mismatch): // says what to do by itself
		return fmt.Errorf("BRIDGE_QUEUE: %w", err)
	case errors.As(err, &refusal):
		return fmt.Errorf("BRIDGE_AMQP_URL: %w; see that the login may configure, write and read the queues", err)
	case errors.As(err, new(*brokerError)): // the form of the URL; says what to do by itself
		return fmt.Errorf("BRIDGE_AMQP_URL: %w", err)
	}
	return fmt.Errorf("BRIDGE_DATABASE_URL: %w", err) // all that is left comes from there
}

// exitCode is the code of an error that explain explains.
func exitCode(err error) int {
	var refusal *amqp.Error
	var mismatch *bridge.QueueMismatch
	switch {
	case errors.Is(err, errNotDrained):
		return exitNotDrained
	case errors.As(err, new(*addressError)):
		return exitFailed
	case errors.As(err, new(*tracesError)), errors.Is(err, database.ErrURL):
		return exitMisused
	case errors.As(err, new(*brokerError)) && (errors.As(err, new(*fs.PathError)) || // the URL names a file that cannot be read, or is no URL
		!errors.Is(err, bridge.ErrUnavailable) && !errors.Is(err, bridge.ErrCredentials) && !errors.Is(err, bridge.ErrBlocked) &&
			!errors.As(err, &refusal) && !errors.As(err, &mismatch)):
		return exitMisused
	}
	return map[cause]int{causeDatabase: exitDatabase, causeSchema: exitSchema, causeProof: exitProof,
		causeBroker: exitBroker, causeQueue: exitBroker}[causeOf(err)]
}

// tlsMend is the mend of an error that comes from TLS, whichever server it is about.
func tlsMend(err error) string {
	switch {
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return "name in the URL the host that the certificate is for, and the file with the authority that signed it"
	case strings.Contains(err.Error(), "remote error: tls: "): // amqp091 keeps only the text of an alert
		return "name in the URL the files of a certificate that the server takes, and of its key"
	case errors.As(err, new(*fs.PathError)):
		return "name a file that can be read"
	}
	return ""
}
