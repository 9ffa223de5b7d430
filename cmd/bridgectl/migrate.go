package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/cmd/internal/advice"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
)

func newMigrateCommand(a *app) *cobra.Command {
	return newGroup("migrate", "Create the tables, or bring them to this release's version",
		`The ledger's tables are in the senders' database, the inbox's in the receivers'. Both
have a version; a program works with tables of its own version and of the next one. The
commands act on the ledger's tables, unless --inbox is given.`,
		newMigrateUp(a), newMigrateStatus(a), newMigratePrint(a))
}

// parts has the flags --ledger and --inbox.
type parts struct{ ledger, inbox bool }

func (p *parts) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&p.ledger, "ledger", false, "the ledger's tables (the default)")
	cmd.Flags().BoolVar(&p.inbox, "inbox", false, "the inbox's tables, in the database of BRIDGE_INBOX_URL (default: BRIDGE_DATABASE_URL)")
}

func (p *parts) chosen() []migrate.Part {
	var all []migrate.Part
	if p.ledger || !p.inbox {
		all = append(all, migrate.LedgerPart)
	}
	if p.inbox {
		all = append(all, migrate.InboxPart)
	}
	return all
}

// schemaURL returns the URL of a part's database, with its variable.
func (a *app) schemaURL(part migrate.Part) (variable, url string, err error) {
	if part == migrate.InboxPart && a.config.Inbox.URL != "" {
		return "BRIDGE_INBOX_URL", a.config.Inbox.URL, nil
	}
	url, err = a.databaseURL()
	return "BRIDGE_DATABASE_URL", url, err
}

// schemaOf returns the schema of a part's tables.
func (a *app) schemaOf(part migrate.Part) database.Schema {
	if part == migrate.InboxPart {
		return a.config.Inbox.Schema
	}
	return a.config.Schema
}

// A schema is the state of the version of a part's tables.
type schema struct {
	Part     migrate.Part    `json:"part"`
	Database migrate.Dialect `json:"database"`
	There    int64           `json:"there"`  // the version of the tables; 0 without tables
	Wanted   int64           `json:"wanted"` // the version that this release makes
	State    string          `json:"state"`
	Identity string          `json:"identity,omitempty"` // the ledger's

	refusal error // of tables that are too new
}

// The states of a schema.
const (
	stateCurrent = "current"
	stateBehind  = "behind" // migrate up brings the tables to the wanted version
	stateMissing = "missing"
	stateNewer   = "newer"   // of the next version, with which this release works
	stateTooNew  = "too new" // of a later release; this one refuses them
)

type schemas []schema

func (s schemas) write(p *page) {
	p.table([]string{"PART", "DATABASE", "THERE", "WANTED", "STATE", "IDENTITY"}, rowsOf(s, func(one schema) []string {
		return []string{string(one.Part), string(one.Database), fmt.Sprint(one.There), fmt.Sprint(one.Wanted), one.State, one.Identity}
	}))
}

func newMigrateUp(a *app) *cobra.Command {
	var p parts
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Create the tables, or bring them to this release's version",
		Long: `Creates missing tables and upgrades older ones. Fails if the tables are too new for this
release. The login needs the right to create tables. Creates a missing SQLite file. If the
server is not up yet, the command waits up to two minutes and says so on standard error. Any
number of these commands may run at once, and beside senders and verifiers.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.eachSchema(cmd, &p, true)
		},
	}
	p.flags(cmd)
	return cmd
}

func newMigrateStatus(a *app) *cobra.Command {
	var p parts
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the version of the tables, and the version that this release needs",
		Long:  `Changes nothing. Without a flag it shows the ledger's tables.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.eachSchema(cmd, &p, false)
		},
	}
	p.flags(cmd)
	return cmd
}

// eachSchema prints the state of each chosen part's tables. If up is set, it first brings them to
// this release's version.
func (a *app) eachSchema(cmd *cobra.Command, p *parts, up bool) error {
	var found schemas
	for _, part := range p.chosen() {
		variable, url, err := a.schemaURL(part)
		if err != nil {
			return err
		}
		schema := a.schemaOf(part)
		open := schema.Open
		if up {
			open = func(ctx context.Context, url string) (*database.Database, error) {
				return schema.Await(ctx, url, advice.Waiting(cmd.ErrOrStderr(), "bridgectl", variable))
			}
		}
		one, err := inspectSchema(cmd.Context(), part, url, open, up)
		if err != nil {
			return about(variable, err)
		}
		found = append(found, one)
	}
	return a.print(found)
}

func inspectSchema(ctx context.Context, part migrate.Part, url string, open func(context.Context, string) (*database.Database, error), up bool) (schema, error) {
	db, err := open(ctx, url)
	if err != nil {
		return schema{}, err
	}
	defer db.Close()
	if up {
		if err := bringUp(ctx, db, part); err != nil {
			return schema{}, err
		}
	}
	var s schema
	err = db.Answering(ctx, func(ctx context.Context) (err error) {
		s, err = identifySchema(ctx, db, part)
		return err
	})
	return s, err
}

// identifySchema is readSchema with the ledger's identity.
func identifySchema(ctx context.Context, db *database.Database, part migrate.Part) (schema, error) {
	s, err := readSchema(ctx, db, part)
	if err == nil && part == migrate.LedgerPart && (s.State == stateCurrent || s.State == stateNewer) {
		var ledger *database.Ledger
		if ledger, err = db.Ledger(ctx); err == nil {
			s.Identity = ledger.Identity().String()
		}
	}
	return s, err
}

func bringUp(ctx context.Context, db *database.Database, part migrate.Part) error {
	up := db.MigrateLedger
	if part == migrate.InboxPart {
		up = db.MigrateInbox
	}
	if err := up(ctx); err != nil {
		return err
	}
	if err := opens(ctx, db, part); errors.Is(err, bridge.ErrLaterSchema) {
		return err
	}
	return nil
}

// readSchema returns the state of a part's tables.
func readSchema(ctx context.Context, db *database.Database, part migrate.Part) (schema, error) {
	s := schema{Part: part, Database: db.Dialect()}
	var err error
	if s.There, s.Wanted, err = db.Version(ctx, part); err != nil {
		return s, err
	}
	switch {
	case s.There == 0:
		s.State = stateMissing
	case s.There < s.Wanted:
		s.State = stateBehind
	case s.There == s.Wanted:
		s.State = stateCurrent
	default:
		s.State = stateNewer
		if err = opens(ctx, db, part); errors.Is(err, bridge.ErrNoSchema) {
			s.State, s.refusal, err = stateTooNew, err, nil
		}
	}
	return s, err
}

// opens returns nil if this release works with the tables of a part.
func opens(ctx context.Context, db *database.Database, part migrate.Part) error {
	if part == migrate.InboxPart {
		_, err := db.Inbox(ctx)
		return err
	}
	_, err := db.Ledger(ctx)
	return err
}

// dialects lists the databases for which statements can be printed.
var dialects = []string{string(migrate.PostgreSQL), string(migrate.MySQL), string(migrate.SQLServer), string(migrate.SQLite)}

func newMigratePrint(a *app) *cobra.Command {
	var p parts
	var dialect string
	var from int64
	cmd := &cobra.Command{
		Use:         "print",
		Annotations: map[string]string{offline: "true"},
		Short:       "Print the statements, for an administrator to run",
		Long: `Prints the statements that "migrate up" would run on a database without the tables, or with
the tables of version --from. Contacts no database. The output is SQL, also with -o json.`,
		RunE: func(*cobra.Command, []string) error {
			for i, part := range p.chosen() {
				kind := migrate.Dialect(dialect)
				if dialect == "" {
					_, url, err := a.schemaURL(part)
					if err != nil {
						return misused("--database: is not given, and BRIDGE_DATABASE_URL is not set; give one of %s", strings.Join(dialects, ", "))
					}
					kind, _ = database.DialectOf(url)
				}
				if !slices.Contains(dialects, string(kind)) {
					return misused("--database: %q is not known; give one of %s", kind, strings.Join(dialects, ", "))
				}
				if i > 0 {
					fmt.Fprintln(a.stdout)
				}
				if err := migrate.Schema(a.schemaOf(part)).Print(a.stdout, kind, part, from); err != nil {
					return &misuse{err}
				}
			}
			return nil
		},
	}
	p.flags(cmd)
	cmd.Flags().StringVar(&dialect, "database", "", "the kind of database: "+strings.Join(dialects, ", ")+" (default: the kind of BRIDGE_DATABASE_URL)")
	cmd.Flags().Int64Var(&from, "from", 0, "the present version of the tables")
	_ = cmd.RegisterFlagCompletionFunc("database", cobra.FixedCompletions(dialects, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}
