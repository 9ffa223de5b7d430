package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/proof"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/transit"
)

// examineDatabase examines the ledger's database, and the inbox if one is named.
func (a *app) examineDatabase(ctx context.Context) []group {
	g := &group{Name: "Database"}
	err := a.answered(ctx, func(ctx context.Context) error {
		a.examineLedger(ctx, g)
		return ctx.Err()
	})
	g.examineLock(err)
	groups := []group{*g}
	if a.config.Inbox.URL != "" {
		i := &group{Name: "Inbox"}
		examineInbox(ctx, i, a.config.Inbox.URL, a.config.Inbox.Schema)
		groups = append(groups, *i)
	}
	return groups
}

// examineLock adds a finding if a locked table has ended the examination.
func (g *group) examineLock(err error) {
	if errors.Is(err, database.ErrTableLocked) {
		g.check("table locks").failed(err)
	}
}

func (a *app) examineLedger(ctx context.Context, g *group) {
	db, err := a.database(ctx)
	if err != nil {
		g.check("connection").failed(err)
		return
	}
	g.Name = fmt.Sprintf("Database (%s)", db.Dialect())
	g.check("connection").ok("the database answers")
	g.check("encryption").examineTransit("BRIDGE_DATABASE_URL", transit.Database(a.config.Database.URL))
	if !examineSchema(ctx, g, db, migrate.LedgerPart) {
		return
	}
	ledger, err := a.ledger(ctx)
	if err != nil {
		g.check("ledger").refused(db, migrate.LedgerPart, err)
		return
	}
	prove(ctx, g, ledger)
	if own := a.config.OwnTable; own != "" {
		g.check("own table").ok("messages are judged by %s", own)
	}
	findings, err := ledger.Diagnose(ctx)
	g.Findings = append(g.Findings, findings...)
	if err != nil {
		g.check("settings").failed(fmt.Errorf("examine the database: %w", err))
	}
}

// refused is failed for the tables that the doctor reads first. Without the right to read them it
// cannot find out which other rights are missing.
func (c *check) refused(db *database.Database, part migrate.Part, err error) {
	if !missingRight(err) {
		c.failed(err)
		return
	}
	fix := db.In("GRANT SELECT ON bridge_" + string(part) + "_version TO the login;")
	if usage := db.Usage(); usage != "" { // without it the login finds no table
		fix = "GRANT " + usage + " TO the login;\n" + fix
	}
	if part == migrate.LedgerPart {
		fix += db.In("\nGRANT SELECT ON bridge_identity TO the login;\nthen run the doctor again: it lists the statements for the other rights")
	}
	c.fail(fix, "%s", err)
}

// prove runs a verifier's proof that the lookup waits (rule 5 of package bridge).
func prove(ctx context.Context, g *group, ledger driver.Ledger) {
	c := g.check("proof")
	start := time.Now()
	_, err := proof.Prove(ctx, ledger)
	switch {
	case err == nil:
		c.ok("the lookup waits for open transactions and reports their outcome (proven in %v)", time.Since(start).Round(time.Millisecond))
	case errors.Is(err, bridge.ErrProof):
		c.failed(err)
	default:
		c.failed(fmt.Errorf("could not be carried out: %w", err))
	}
}

// examineSchema adds the state of the tables' version, and reports whether this release can use
// them.
func examineSchema(ctx context.Context, g *group, db *database.Database, part migrate.Part) bool {
	c := g.check("schema")
	up := "bridgectl migrate up"
	if part == migrate.InboxPart {
		up += " --inbox"
	}
	s, err := readSchema(ctx, db, part)
	if err != nil {
		c.refused(db, part, err)
		return false
	}
	switch s.State {
	case stateMissing:
		c.fail("name the right database, or create the tables with "+up, "the tables of the %s are missing", part)
	case stateBehind:
		c.fail("migrate them with "+up, "the %s's tables have version %d, this release needs %d", part, s.There, s.Wanted)
	case stateTooNew:
		c.fail("use the release that made them, or a later one", "%v", s.refusal)
	case stateNewer:
		c.warn("complete the upgrade: replace this release's programs with the release that made the tables",
			"the %s's tables have version %d; this release, of version %d, works with them", part, s.There, s.Wanted)
	case stateCurrent:
		c.ok("the %s's tables have version %d, as this release needs", part, s.There)
	}
	return s.State == stateNewer || s.State == stateCurrent
}

func examineInbox(ctx context.Context, g *group, url string, schema database.Schema) {
	db, err := schema.Open(ctx, url)
	if err != nil {
		g.check("connection").failed(about("BRIDGE_INBOX_URL", err))
		return
	}
	defer db.Close()
	g.Name = fmt.Sprintf("Inbox (%s)", db.Dialect())
	g.check("connection").ok("the database answers")
	g.check("encryption").examineTransit("BRIDGE_INBOX_URL", transit.Database(url))
	g.examineLock(db.Answering(ctx, func(ctx context.Context) error {
		examineInboxTables(ctx, g, db)
		return ctx.Err()
	}))
}

func examineInboxTables(ctx context.Context, g *group, db *database.Database) {
	if !examineSchema(ctx, g, db, migrate.InboxPart) {
		return
	}
	if _, err := db.Inbox(ctx); err != nil {
		g.check("inbox").failed(err)
		return
	}
	g.check("inbox").ok("it can be opened")
	findings, err := db.DiagnoseInbox(ctx)
	g.Findings = append(g.Findings, findings...)
	if err != nil {
		g.check("settings").failed(fmt.Errorf("examine the inbox's database: %w", err))
	}
}
