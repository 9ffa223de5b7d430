package advice_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/advice"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
)

func TestExplainNamesTheVariableAndTheFix(t *testing.T) {
	missing := &fs.PathError{Op: "open", Path: "ca.pem", Err: fs.ErrNotExist}
	for _, c := range []struct {
		err  error
		want string
	}{
		{bridge.ErrCredentials, "SHOP_AMQP_URL: begin: broker refuses the login; correct user, password or virtual host"},
		{fmt.Errorf("%w: %w", bridge.ErrConnectionLimit, bridge.ErrUnavailable), "SHOP_AMQP_URL: begin: limit of connections reached: broker unavailable; close unused connections, or raise the limit of the user, the virtual host or the node"},
		{database.ErrCredentials, "SHOP_DATABASE_URL: begin: database refuses the login; correct user or password, or the client's certificate"},
		{database.ErrURL, "SHOP_DATABASE_URL: begin: not a database URL"},
		{database.ErrClear, "SHOP_DATABASE_URL: begin: " + database.ErrClear.Error() + "; add ssl-ca=FILE to the URL's parameters, or tls=true for the system's authorities"},
		{bridge.ErrNotPrimary, "SHOP_DATABASE_URL: begin: " + bridge.ErrNotPrimary.Error() + "; name the primary, with a login that may write"},
		{fmt.Errorf("%w: %w", bridge.ErrUnavailable, missing), "SHOP_AMQP_URL: begin: broker unavailable: open ca.pem: file does not exist; name a readable file"},
		{fmt.Errorf("%w: %w", database.ErrUnreachable, syscall.ECONNRESET), "SHOP_DATABASE_URL: begin: database not reachable: connection reset by peer; check that the server runs; if it asks for a certificate, name the files of a certificate that the server accepts in the URL; the server's log says why it closed the connection"},
		{fmt.Errorf("%w: %w", bridge.ErrUnavailable, tls.RecordHeaderError{Msg: "no TLS record"}), "SHOP_AMQP_URL: begin: broker unavailable: tls: no TLS record; name the server's port for TLS; this port seems to have no TLS"},
		{database.ErrNoDatabase, "SHOP_DATABASE_URL: begin: no such database; correct the database's name in the URL, or create the database"},
		{errors.New("remote error: tls: bad certificate"), "begin: remote error: tls: bad certificate; name the files of a certificate that the server accepts, and of its key, in the URL"},
		{&amqp.Error{Code: amqp.AccessRefused, Reason: "no"}, `SHOP_AMQP_URL: begin: Exception (403) Reason: "no"; let the login read the queues, write to amq.default and to the targets' exchanges, and configure the queues; or make the queues with bridgectl topology declare and another login`},
		{&amqp.Error{Code: amqp.NotFound, Reason: "no"}, `SHOP_AMQP_URL: begin: Exception (404) Reason: "no"`},
		{errors.New("anything else"), "begin: anything else"},
	} {
		if got := advice.Explain("SHOP", fmt.Errorf("begin: %w", c.err)); got.Error() != c.want || !errors.Is(got, c.err) {
			t.Errorf("%v\nwant %s", got, c.want)
		}
	}
}

func TestAWrongVariableIsMisuse(t *testing.T) {
	missing := &fs.PathError{Op: "open", Path: "ca.pem", Err: fs.ErrNotExist}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{bridge.ErrURL, true},
		{database.ErrURL, true},
		{fmt.Errorf("%w: %w", bridge.ErrUnavailable, missing), true},
		{bridge.ErrUnavailable, false},
		{database.ErrUnreachable, false},
		{missing, false}, // the file of no server
	} {
		if got := advice.Misuse(fmt.Errorf("begin: %w", c.err)); got != c.want {
			t.Errorf("%v: %t", c.err, got)
		}
	}
}

// An attacker may have written a server's text.
func TestALineIsOneAndHasNothingThatATerminalActsOn(t *testing.T) {
	for text, want := range map[string]string{
		"failed:\n\thost a\n\thost a\n host b \n":                           "failed: host a host b",
		"schema not usable: call migrate.Ledger or migrate.Inbox: no table": "schema not usable: migrate: no table",
		"refused:\n \x1b[2J\u009b1m gone\n":                                 "refused: \uFFFD[2J\uFFFD1m gone",
	} {
		if got := advice.Line(text); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
