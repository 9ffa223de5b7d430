// Package database opens, by its URL, the database that a command works with. It
// is the only place where the commands import database drivers.
//
//	postgres://user:password@host:port/database
//	mysql://user:password@host:port/database
//	sqlserver://user:password@host:port?database=name
//	azuresql://host?database=name&fedauth=ActiveDirectoryDefault
//	sqlite:/path/to/file   (sqlite:file for a path from the working directory)
//
// TLS is chosen by the URL's parameters, which are the drivers' own but for MySQL's:
// the first file has the authorities that may have signed the server's certificate,
// the others are our own certificate and key, all in PEM. Each of these verifies the
// server's certificate and that it is for the URL's host:
//
//	postgres://...?sslmode=verify-full&sslrootcert=FILE&sslcert=FILE&sslkey=FILE
//	mysql://...?ssl-ca=FILE&ssl-cert=FILE&ssl-key=FILE, or tls=true for the system's authorities
//	sqlserver://...?certificate=FILE, or without it for the system's authorities
//
// Without them PostgreSQL is asked for TLS, but neither it nor its certificate is insisted on, and
// MySQL is spoken to in the clear. Package transit refuses such URLs. SQL Server is spoken to by TLS
// unless the URL has encrypt=disable, or encrypt=false, which encrypts the login alone and takes any
// certificate. Azure SQL (*.database.windows.net) and logins by fedauth take TLS only.
//
// SQL Server's other parameters are go-mssqldb's:
//
//	sqlserver://user:password@host/INSTANCE    a named instance: SQL Server Browser tells its port (UDP
//	                                           1434); with a port in the URL it is not asked
//	fedauth=ActiveDirectoryDefault             a login of Microsoft Entra ID, or another of azuread's
//	authenticator=krb5                         Kerberos, by a keytab, a credential cache or a password:
//	                                           krb5-configfile, krb5-realm, krb5-keytabfile, krb5-credcachefile
//	multiSubnetFailover                        true by default: all addresses of an availability
//	                                           group's listener are tried at once
//
// The host may be the listener of an availability group or of a failover group
// (GROUP.database.windows.net). Do not give a failover group's read-only listener
// (GROUP.secondary.database.windows.net): no lookup waits there, and Open refuses it.
//
// The connection to a MySQL or SQL Server that says nothing for two minutes is dropped. Set
// readTimeout (MySQL) or 'connection timeout' (SQL Server, in seconds) in the URL for another
// time. A migration waits for as long as it takes.
//
// No error contains the URL or a password.
package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/migrate"
)

// Errors that answer a question; ask with errors.Is.
var (
	// ErrURL: the URL is not one of the forms above; the text says why.
	ErrURL = errors.New("not a database URL")
	// ErrCredentials: the database refuses the user or the password.
	ErrCredentials = errors.New("database refuses the login")
	// ErrClear: the server takes TLS only, and the URL asks for none.
	ErrClear = errors.New("database takes no connection without TLS")
	// ErrNoDatabase: the server has no database of this name.
	ErrNoDatabase = errors.New("no such database")
	// ErrUnreachable: nobody answers, or there is no such file.
	ErrUnreachable = errors.New("database not reachable")
)

// patience bounds the first contact with a database.
const patience = 10 * time.Second

// A Database is a pool of connections with what its kind can do.
type Database struct {
	*sqlx.DB
	kind   kind
	schema migrate.Schema // of the bridge's tables
}

// kind is all that the commands know of one kind of database.
type kind struct {
	dialect migrate.Dialect
	// open makes a pool, and reads the URL before each connection; create says that a file may
	// be made, and prepared.
	open func(ctx context.Context, read func() string, create bool) (*sqlx.DB, error)
	// in opens the tables of a schema, whose name is empty where there are no schemas.
	in func(schema migrate.Schema) openers
	// inboxDiagnose examines a receiver's server.
	inboxDiagnose func(ctx context.Context, db *sql.DB) ([]inspect.Finding, error)
	// inClear is InClear's list, nil where there is no network; mendClear is what to change.
	inClear   func(url string) []string
	mendClear string
}

// openers are the functions of a database's package.
type openers struct {
	ledger   func(ctx context.Context, db *sql.DB) (*Ledger, error)
	ownTable func(ctx context.Context, db *sql.DB, own bridge.OwnTable) (*Ledger, error)
	inbox    func(ctx context.Context, db *sql.DB) (driver.Inbox, error)
}

// inspector is what the inspectors of all databases are. SQLite's is no inspect.Watcher.
type inspector interface {
	inspect.Diagnoser
	inspect.CarriedReader
	inspect.Advancer
}

// opens makes of a kind's own ledger, and of its inspector, what the commands know.
func opens[L driver.Ledger, I inspector](open func(context.Context, *sql.DB) (L, error), of func(L) I) func(context.Context, *sql.DB) (*Ledger, error) {
	return func(ctx context.Context, db *sql.DB) (*Ledger, error) {
		ledger, err := open(ctx, db)
		if err != nil {
			return nil, err
		}
		inspects := of(ledger)
		watcher, _ := any(inspects).(inspect.Watcher)
		return &Ledger{ledger, inspects, inspects, inspects, watcher}, nil
	}
}

func opensOwn[L driver.Ledger, I inspector](open func(context.Context, *sql.DB, bridge.OwnTable) (L, error), of func(L) I) func(context.Context, *sql.DB, bridge.OwnTable) (*Ledger, error) {
	return func(ctx context.Context, db *sql.DB, own bridge.OwnTable) (*Ledger, error) {
		openIt := func(ctx context.Context, db *sql.DB) (L, error) { return open(ctx, db, own) }
		return opens(openIt, of)(ctx, db)
	}
}

func opensInbox[I driver.Inbox](open func(context.Context, *sql.DB) (I, error)) func(context.Context, *sql.DB) (driver.Inbox, error) {
	return func(ctx context.Context, db *sql.DB) (driver.Inbox, error) { return open(ctx, db) }
}

// kinds are the schemes of URLs.
var kinds = map[string]kind{
	"postgres":   postgresKind,
	"postgresql": postgresKind,
	"mysql":      mysqlKind,
	"sqlserver":  sqlServerKind,
	"azuresql":   sqlServerKind,
	"sqlite":     sqliteKind,
}

// Open connects to a database that exists, and changes nothing in it.
func Open(ctx context.Context, url string) (*Database, error) {
	return open(ctx, always(url), false, patience)
}

// OpenAnew is Open for a program that runs for long: read returns the URL, and is asked before
// each connection. The kind of database must stay the same.
func OpenAnew(ctx context.Context, read func() string) (*Database, error) {
	return open(ctx, read, false, patience)
}

func always(url string) (read func() string) { return func() string { return url } }

// Create connects like Open. A SQLite file is made if it is missing, and is put
// into WAL mode, which the ledger requires.
func Create(ctx context.Context, url string) (*Database, error) {
	return open(ctx, always(url), true, patience)
}

func open(ctx context.Context, read func() string, create bool, patience time.Duration) (*Database, error) {
	kind, ok := kinds[scheme(read())]
	if !ok {
		return nil, fmt.Errorf("open database: %w: it must start with postgres://, mysql://, sqlserver:// or azuresql://, or with sqlite: and a path", ErrURL)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	db, err := kind.open(ctx, read, create)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	return &Database{DB: db, kind: kind}, nil
}

// Limit bounds the pool, and keeps open what has been opened.
func (d *Database) Limit(connections int) {
	d.SetMaxOpenConns(connections)
	d.SetMaxIdleConns(connections)
}

// InClear returns the hosts to which a URL lets connections be without TLS, or with a
// certificate that nobody verifies, and what to change in it; none if it insists on both,
// knows no network or is no URL of a database.
func InClear(url string) (hosts []string, mend string) {
	kind := kinds[scheme(url)]
	if kind.inClear == nil {
		return nil, ""
	}
	return kind.inClear(url), kind.mendClear
}

// MigrateLedger creates the ledger's tables, or brings them to this release's version.
func (d *Database) MigrateLedger(ctx context.Context) error {
	return d.schema.Ledger(ctx, d.DB.DB, d.kind.dialect)
}

// MigrateInbox does the same for the inbox.
func (d *Database) MigrateInbox(ctx context.Context) error {
	return d.schema.Inbox(ctx, d.DB.DB, d.kind.dialect)
}

// MigrateTables does the same for tables of the command's own, which the login's settings find, whatever
// the schema is; see migrate.Tables.
func (d *Database) MigrateTables(ctx context.Context, files fs.FS, part string) error {
	return migrate.Tables(ctx, d.DB.DB, d.kind.dialect, files, part)
}

// A Ledger is a ledger with its inspector, which answers operators' questions about it.
type Ledger struct {
	driver.Ledger
	inspect.Diagnoser
	inspect.CarriedReader
	inspect.Advancer
	inspect.Watcher // nil: the database does not tell who holds a message up
}

// Ledger opens the ledger that is in the database.
func (d *Database) Ledger(ctx context.Context) (*Ledger, error) {
	return d.kind.in(d.schema).ledger(ctx, d.DB.DB)
}

// DiagnoseInbox looks at what a receiver needs of its server.
func (d *Database) DiagnoseInbox(ctx context.Context) ([]inspect.Finding, error) {
	return d.kind.inboxDiagnose(ctx, d.DB.DB)
}

// Inbox opens the inbox that is in the database.
func (d *Database) Inbox(ctx context.Context) (driver.Inbox, error) {
	return d.kind.in(d.schema).inbox(ctx, d.DB.DB)
}

// parse takes a URL apart. A special character that is not encoded makes part of the
// password look like host, port, path, parameter or fragment, and drivers differ in
// what they take for the host: nothing of such a URL may get into an error.
func parse(address, form string) (*url.URL, error) {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Hostname() == "" || parsed.Fragment != "" ||
		strings.Contains(parsed.RequestURI(), "@") || strings.Count(address, "@") > 1 {
		return nil, fmt.Errorf("%w: it must be %s, with special characters in user and password percent-encoded", ErrURL, form)
	}
	return parsed, nil
}

// ping makes the first connection, or closes the pool.
func ping(ctx context.Context, db *sqlx.DB, classify func(error) error) (*sqlx.DB, error) {
	if err := db.PingContext(ctx); err != nil {
		_ = db.Close()
		return nil, classify(err)
	}
	return db, nil
}
