package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
)

// aboutError is an error of the first contact with a server: it knows the variable
// that names the server.
type aboutError struct {
	variable string
	err      error
}

func about(variable string, err error) error { return &aboutError{variable, err} }

func (e *aboutError) Error() string { return e.variable + ": " + e.err.Error() }
func (e *aboutError) Unwrap() error { return e.err }

// mends say what to do about an error.
var mends = []struct {
	err  error
	mend string
}{
	{bridge.ErrCredentials, "correct user, password or virtual host"},
	{bridge.ErrUnavailable, "see that the broker runs, and that host and port are right"},
	{bridge.ErrBlocked, "free the broker's memory or disk"},
	{database.ErrURL, ""}, // says it by itself
	{database.ErrCredentials, "correct user or password, or the client's certificate"},
	{database.ErrUnreachable, "see that the database is there and runs, and that the URL is right"},
	{bridge.ErrNoSchema, "name the right database, or create the tables with bridgectl migrate up"},
	{bridge.ErrNotPrimary, "name the primary, with a login that may write"},
	{bridge.ErrOtherLedger, "see that the URL always leads to the same database"},
	{bridge.ErrProof, "name the primary itself, without a proxy that changes how it locks"},
	{errManagementLogin, "correct its user and password, and give the user the tag monitoring"},
	{errManagementAway, "see that the management plugin runs, and that host and port are right"},
}

// explain puts the mend behind an error.
func explain(err error) error {
	if mend := mendOf(err); mend != "" {
		return fmt.Errorf("%w; %s", err, mend)
	}
	return err
}

// mendOf is what to do about an error; empty if nobody knows, or it says it itself.
func mendOf(err error) string {
	if mend := tlsMend(err); mend != "" {
		return mend
	}
	for _, m := range mends {
		if errors.Is(err, m.err) {
			return m.mend
		}
	}
	var mismatch *bridge.QueueMismatch
	var refusal *amqp.Error
	switch {
	case errors.As(err, &mismatch):
		return ""
	case errors.As(err, &refusal) && refusal.Code == amqp.NotFound:
		return "create the queues with bridgectl topology declare, or name the right ones with BRIDGE_QUEUE"
	case errors.As(err, &refusal) && refusal.Code == amqp.AccessRefused:
		return "see that the login may configure, write and read the queues"
	}
	return ""
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
