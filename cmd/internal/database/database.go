// Package database opens, by its URL, the database that a command works with. It
// is the only place where the commands import database drivers.
//
//	postgres://user:password@host:port/database
//	mysql://user:password@host:port/database
//	sqlserver://user:password@host:port?database=name
//	azuresql://host?database=name&fedauth=ActiveDirectoryDefault
//	sqlite:/path/to/file   (sqlite:file for a path from the working directory)
//
// The URL's parameters choose TLS. They are the drivers' own, except MySQL's. With one of these the
// client verifies the server's certificate, and that it is for the URL's host. The first file has
// the authorities that may have signed the server's certificate; the others are the client's own
// certificate and key. All are PEM.
//
//	postgres://...?sslmode=verify-full&sslrootcert=FILE&sslcert=FILE&sslkey=FILE
//	mysql://...?ssl-ca=FILE&ssl-cert=FILE&ssl-key=FILE, or tls=true for the system's authorities
//	sqlserver://...?certificate=FILE, or without it for the system's authorities
//
// Without these parameters a connection to PostgreSQL uses TLS if the server has it, and verifies no
// certificate. A connection to MySQL uses no TLS. Package transit refuses such URLs. A connection to
// SQL Server uses TLS unless the URL has encrypt=disable, or encrypt=false, which encrypts the login
// alone and takes any certificate. Azure SQL (*.database.windows.net) and logins by fedauth take TLS
// only.
//
// SQL Server's other parameters are go-mssqldb's:
//
//	sqlserver://user:password@host/INSTANCE    a named instance; without a port in the URL, SQL Server
//	                                           Browser reports the port (UDP 1434)
//	fedauth=ActiveDirectoryDefault             a login of Microsoft Entra ID; package azuread lists
//	                                           the other values
//	authenticator=krb5                         Kerberos, by a keytab, a credential cache or a password:
//	                                           krb5-configfile, krb5-realm, krb5-keytabfile, krb5-credcachefile
//	multiSubnetFailover                        true by default: all addresses of an availability
//	                                           group's listener are tried at once
//
// The host may be the listener of an availability group or of a failover group
// (GROUP.database.windows.net). Do not use a failover group's read-only listener
// (GROUP.secondary.database.windows.net): no lookup waits there, and Database.Ledger refuses it.
//
// A connection is dropped if MySQL or SQL Server does not answer for two minutes. The parameters
// readTimeout (MySQL) and 'connection timeout' (SQL Server, in seconds) set another time. A
// migration has no such limit. PostgreSQL has none either: Answering ends its wait for a locked table.
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

// Errors for errors.Is.
var (
	// ErrURL: the URL is not one of the forms above; the text says why.
	ErrURL = errors.New("not a database URL")
	// ErrCredentials: the database refuses the user or the password.
	ErrCredentials = errors.New("database refuses the login")
	// ErrClear: the server takes TLS only, and the URL asks for none.
	ErrClear = errors.New("database accepts no connection without TLS")
	// ErrNoDatabase: the server has no database of this name.
	ErrNoDatabase = errors.New("no such database")
	// ErrUnreachable: no server answers, or the file does not exist.
	ErrUnreachable = errors.New("database not reachable")
)

// patience bounds the first contact with a database.
const patience = 10 * time.Second

// A Database is a pool of connections, with the operations of its kind of database.
type Database struct {
	*sqlx.DB
	kind   kind
	schema migrate.Schema // of the bridge's tables
}

// kind has the functions for one kind of database.
type kind struct {
	dialect migrate.Dialect
	// open returns a pool that reads the URL before each connection; SQLite's reads it once. create
	// allows it to create and prepare a file.
	open func(ctx context.Context, read func() string, create bool) (*sqlx.DB, error)
	// in returns the functions that open the tables of a schema. MySQL and SQLite have no schemas.
	in func(schema migrate.Schema) openers
	// inboxDiagnose examines a receiver's server.
	inboxDiagnose func(ctx context.Context, db *sql.DB) ([]inspect.Finding, error)
	// tableLocks is a statement that lists the tables for whose lock a statement of this login has waited
	// for the seconds of its parameter, with the sessions in the way; "": there is none.
	tableLocks string
	// inClear returns InClear's hosts; nil for a database without a network. fixClear is its fix.
	inClear  func(url string) []string
	fixClear string
}

// openers has the functions of a database's package.
type openers struct {
	ledger   func(ctx context.Context, db *sql.DB) (*Ledger, error)
	ownTable func(ctx context.Context, db *sql.DB, own bridge.OwnTable) (*Ledger, error)
	inbox    func(ctx context.Context, db *sql.DB) (driver.Inbox, error)
}

// inspector has the interfaces that the inspectors of all databases implement. SQLite's is not an
// inspect.Watcher.
type inspector interface {
	inspect.Diagnoser
	inspect.CarriedReader
	inspect.Advancer
}

// opens returns a function that opens a database's own ledger and its inspector as one Ledger.
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

// kinds maps a URL's scheme to the kind of database.
var kinds = map[string]kind{
	"postgres":   postgresKind,
	"postgresql": postgresKind,
	"mysql":      mysqlKind,
	"sqlserver":  sqlServerKind,
	"azuresql":   sqlServerKind,
	"sqlite":     sqliteKind,
}

// Open connects to an existing database, and changes nothing in it.
func Open(ctx context.Context, url string) (*Database, error) {
	return open(ctx, always(url), false, patience)
}

// OpenAnew is Open for a program that runs for long. It calls read for the URL before each
// connection, but for SQLite only at the start. The kind of database must stay the same.
func OpenAnew(ctx context.Context, read func() string) (*Database, error) {
	return open(ctx, read, false, patience)
}

func always(url string) (read func() string) { return func() string { return url } }

// Create connects like Open. It creates a missing SQLite file, and sets WAL mode, which the ledger
// requires.
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

// Limit bounds the pool, and keeps idle connections open.
func (d *Database) Limit(connections int) {
	d.SetMaxOpenConns(connections)
	d.SetMaxIdleConns(connections)
}

// InClear returns the hosts to which a URL allows connections without TLS, or without a verified
// certificate, and the fix for the URL. It returns no host if the URL requires both, uses no network
// or is not a database URL.
func InClear(url string) (hosts []string, fix string) {
	kind := kinds[scheme(url)]
	if kind.inClear == nil {
		return nil, ""
	}
	return kind.inClear(url), kind.fixClear
}

// MigrateLedger creates the ledger's tables, or brings them to this release's version.
func (d *Database) MigrateLedger(ctx context.Context) error {
	return d.schema.Ledger(ctx, d.DB.DB, d.kind.dialect)
}

// MigrateInbox does the same for the inbox.
func (d *Database) MigrateInbox(ctx context.Context) error {
	return d.schema.Inbox(ctx, d.DB.DB, d.kind.dialect)
}

// MigrateTables does the same for the command's own tables; see migrate.Tables. The named tables go
// into d's schema. Without names the login's settings choose the schema.
func (d *Database) MigrateTables(ctx context.Context, files fs.FS, part string, tables ...string) error {
	if len(tables) == 0 {
		return migrate.Tables(ctx, d.DB.DB, d.kind.dialect, files, part)
	}
	return d.schema.Tables(ctx, d.DB.DB, d.kind.dialect, files, part, tables...)
}

// A Ledger is a ledger with its inspector, which answers operators' questions about it.
type Ledger struct {
	driver.Ledger
	inspect.Diagnoser
	inspect.CarriedReader
	inspect.Advancer
	inspect.Watcher // nil: the database does not report the sessions that hold a message up
}

// Ledger opens the ledger in the database.
func (d *Database) Ledger(ctx context.Context) (*Ledger, error) {
	return d.kind.in(d.schema).ledger(ctx, d.DB.DB)
}

// DiagnoseInbox examines a receiver's requirements of its server.
func (d *Database) DiagnoseInbox(ctx context.Context) ([]inspect.Finding, error) {
	return d.kind.inboxDiagnose(ctx, d.DB.DB)
}

// Inbox opens the inbox in the database.
func (d *Database) Inbox(ctx context.Context) (driver.Inbox, error) {
	return d.kind.in(d.schema).inbox(ctx, d.DB.DB)
}

// parse parses a URL. An unencoded special character makes part of the password look like host,
// port, path, parameter or fragment, and drivers differ in the part that they take for the host. So
// no error may contain any part of such a URL.
func parse(address, form string) (*url.URL, error) {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Hostname() == "" || parsed.Fragment != "" ||
		strings.Contains(parsed.RequestURI(), "@") || strings.Count(address, "@") > 1 {
		return nil, fmt.Errorf("%w: it must be %s, with special characters in user and password percent-encoded", ErrURL, form)
	}
	return parsed, nil
}

// ping makes the first connection. It closes the pool if that fails.
func ping(ctx context.Context, db *sqlx.DB, classify func(error) error) (*sqlx.DB, error) {
	if err := db.PingContext(ctx); err != nil {
		_ = db.Close()
		return nil, classify(err)
	}
	return db, nil
}
