// Package advice adds the fix to an error that ends a command, and puts both into one line.
package advice

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/terminal"
)

// A Server identifies the server that an error comes from. It is the end of the name of that server's
// variable.
type Server string

// The servers that all commands use.
const (
	Broker   Server = "AMQP_URL"
	Database Server = "DATABASE_URL"
)

var known = []struct {
	err    error
	server Server
	fix    string
}{
	{bridge.ErrURL, Broker, ""}, // its text has the fix
	{bridge.ErrCredentials, Broker, "correct user, password or virtual host"},
	{bridge.ErrConnectionLimit, Broker, "close unused connections, or raise the limit of the user, the virtual host or the node"},
	{bridge.ErrUnavailable, Broker, "check that the broker runs, and that host and port are right"},
	{bridge.ErrBlocked, Broker, "free the broker's memory or disk"},
	{database.ErrURL, Database, ""}, // its text has the fix
	{database.ErrCredentials, Database, "correct user or password, or the client's certificate"},
	{database.ErrClear, Database, "add ssl-ca=FILE to the URL's parameters, or tls=true for the system's authorities"},
	{database.ErrNoDatabase, Database, "correct the database's name in the URL, or create the database"},
	{database.ErrUnreachable, Database, "check that the database exists and runs, and that the URL is right"},
	{database.ErrOwnTable, Database, "see the requirements for the table in the comment of OpenOwnTable, in the package of its database under bridge"},
	{bridge.ErrLaterSchema, Database, "run the release that made the tables, or a later one"},
	{bridge.ErrNoSchema, Database, "name the right database, or create the ledger's tables with verifier -migrate"},
	{bridge.ErrNotPrimary, Database, "name the primary, with a login that may write"},
	{bridge.ErrReadOnly, Database, "turn off default_transaction_read_only (PostgreSQL) or transaction_read_only (MySQL, MariaDB) for this login"},
	{bridge.ErrOtherLedger, Database, "check that the URL always leads to the same database"},
	{bridge.ErrOtherInstance, Database, "check that the URL leads to one primary only: remove an old primary or a copy from its hosts, its load balancer or its pooler; after a failover or a restart the next session works again"},
	{bridge.ErrProof, Database, "name the primary itself, without a proxy that changes how it locks"},
}

// NoRight is the fix if the login lacks a right at the broker.
const NoRight = "let the login read the queues, write to amq.default and to the targets' exchanges, and configure the queues; or make the queues with bridgectl topology declare and another login"

// closedAtOnce is the fix if the server closes a new connection. With TLS 1.3 a server may refuse
// the client's certificate after the client has ended the handshake. The client's next write may
// then lose the server's reason.
const closedAtOnce = "check that the server runs; if it asks for a certificate, name the files of a certificate that the server accepts in the URL; the server's log says why it closed the connection"

// Of returns the server that an error comes from, "" if that is unknown, and the fix, "" if none is
// known or the error's text has it.
func Of(err error) (from Server, fix string) {
	for _, k := range known {
		if errors.Is(err, k.err) {
			from, fix = k.server, k.fix
			break
		}
	}
	var refusal *amqp.Error
	switch {
	case from != "":
	case errors.As(err, new(*bridge.QueueMismatch)): // its text has the fix
		from = Broker
	case errors.As(err, &refusal):
		from = Broker
		if refusal.Code == amqp.AccessRefused {
			fix = NoRight
		}
	}
	if from == Database && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)) {
		fix = closedAtOnce
	}
	if secure := TLS(err); secure != "" {
		fix = secure
	}
	return from, fix
}

// Misuse reports whether a variable's value is at fault, not the server: it is not a usable URL, or
// names a file that cannot be read.
func Misuse(err error) bool {
	from, _ := Of(err)
	return errors.Is(err, bridge.ErrURL) || errors.Is(err, database.ErrURL) || from == Broker && errors.As(err, new(*fs.PathError))
}

// TLS returns the fix for an error that comes from TLS, or from the files that a URL names for TLS,
// whatever the server; "" for another error.
func TLS(err error) string {
	switch {
	case errors.As(err, new(tls.RecordHeaderError)):
		return "name the server's port for TLS; this port seems to have no TLS"
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return "name the certificate's host in the URL, and the file of the authority that signed the certificate"
	case strings.Contains(err.Error(), "remote error: tls: "): // amqp091 keeps only the text of an alert
		return "name the files of a certificate that the server accepts, and of its key, in the URL"
	case errors.As(err, new(*fs.PathError)):
		return "name a readable file"
	}
	return ""
}

// Explain puts the variable of the server before an error, and the fix after it, if they are known.
// prefix begins the names of the command's variables.
func Explain(prefix string, err error) error {
	from, fix := Of(err)
	if from != "" {
		err = fmt.Errorf("%s_%s: %w", prefix, from, err)
	}
	return With(err, fix)
}

// Waiting returns a function that writes a line while a program waits for a database: with the variable
// that names the database, and the last error.
func Waiting(stderr io.Writer, program, variable string) (tell func(error)) {
	return func(missing error) {
		fmt.Fprintf(stderr, "%s: waiting for the database: %s: %s\n", program, variable, Line(missing.Error()))
	}
}

// With appends the fix to an error, unless it is "".
func With(err error, fix string) error {
	if fix == "" {
		return err
	}
	return fmt.Errorf("%w; %s", err, fix)
}

// Line joins the lines of a text; drivers write one for each attempt to connect. It omits a line
// that repeats the line before. It replaces characters on which a terminal would act, since a server
// may have sent them.
func Line(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return terminal.Plain(library.Replace(strings.TrimSpace(strings.Join(slices.Compact(lines), " "))))
}

// library replaces the functions that an error's text names for a programmer. The fix after the
// error names the operator's command.
var library = strings.NewReplacer("call migrate.Ledger or migrate.Inbox", "migrate", "call migrate.Ledger", "migrate", "call migrate.Inbox", "migrate")
