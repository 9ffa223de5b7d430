package schema

import (
	"strings"
	"testing"
)

func TestOnlyTheBridgesTablesAndFunctionsGetTheSchema(t *testing.T) {
	postgres, err := PostgreSQL(`Mess"ag'ing ä`)
	if err != nil {
		t.Fatal(err)
	}
	sqlServer, err := SQLServer(`Mess]ag'ing ä`)
	if err != nil {
		t.Fatal(err)
	}
	const p, pl, s, sl = `"Mess""ag'ing ä".`, `"Mess""ag''ing ä".`, `[Mess]]ag'ing ä].`, `[Mess]]ag''ing ä].`
	for _, c := range []struct{ text, postgres, sqlServer string }{
		{`SELECT id FROM bridge_ledger`, `SELECT id FROM ` + p + `bridge_ledger`, `SELECT id FROM ` + s + `bridge_ledger`},
		{`CREATE INDEX bridge_ledger_stage_at ON bridge_ledger (id)`, `CREATE INDEX bridge_ledger_stage_at ON ` + p + `bridge_ledger (id)`, `CREATE INDEX bridge_ledger_stage_at ON ` + s + `bridge_ledger (id)`},
		{`bridge_inbox_version, bridge_inbox`, p + `bridge_inbox_version, ` + p + `bridge_inbox`, s + `bridge_inbox_version, ` + s + `bridge_inbox`},
		{"-- bridge_ledger's rows\nbridge_mark.mark", "-- bridge_ledger's rows\n" + p + "bridge_mark.mark", "-- bridge_ledger's rows\n" + s + "bridge_mark.mark"},
		{`OBJECT_ID('bridge_ledger')`, `OBJECT_ID('` + pl + `bridge_ledger')`, `OBJECT_ID(N'` + sl + `bridge_ledger')`},
		{`EXEC (N'UPDATE bridge_ledger SET x = ''a''')`, `EXEC (N'UPDATE ` + pl + `bridge_ledger SET x = ''a''')`, `EXEC (N'UPDATE ` + sl + `bridge_ledger SET x = ''a''')`},
		{`AS 'SELECT ''10 s'' FROM bridge_forget(ids)'`, `AS 'SELECT ''10 s'' FROM ` + pl + `bridge_forget(ids)'`, `AS N'SELECT ''10 s'' FROM ` + sl + `bridge_forget(ids)'`},
		{`"bridge_ledger" [bridge_ledger] 'it''s' other_bridge_ledger ''`, `"bridge_ledger" [bridge_ledger] 'it''s' other_bridge_ledger ''`, `"bridge_ledger" [bridge_ledger] 'it''s' other_bridge_ledger ''`},
		{`[it]]'s].[bridge_ledger] [a'b]`, `[it]]'s].[bridge_ledger] [a'b]`, `[it]]'s].[bridge_ledger] [a'b]`},
		{postgres.In(`'bridge_ledger' FROM bridge_ledger`), postgres.In(`'bridge_ledger' FROM bridge_ledger`), postgres.In(`'bridge_ledger' FROM bridge_ledger`)},
	} {
		for range 2 { // the second time from In's cache
			if got := postgres.In(c.text); got != c.postgres {
				t.Errorf("%s becomes %s, must become %s", c.text, got, c.postgres)
			}
			if got := sqlServer.In(c.text); got != c.sqlServer {
				t.Errorf("%s becomes %s, must become %s", c.text, got, c.sqlServer)
			}
		}
		if got := (Name{}).In(c.text); got != c.text {
			t.Errorf("without a schema %s becomes %s", c.text, got)
		}
	}
}

func TestAProgramsOwnTablesGetTheSchemaToo(t *testing.T) {
	plain, err := PostgreSQL("messaging")
	if err != nil {
		t.Fatal(err)
	}
	const text = `CREATE INDEX emails_changed ON emails (id); SELECT 'emails' FROM bridge_ledger, public.emails, my_emails`
	const bridges, all = `CREATE INDEX emails_changed ON emails (id); SELECT 'emails' FROM "messaging".bridge_ledger, public.emails, my_emails`,
		`CREATE INDEX emails_changed ON "messaging".emails (id); SELECT '"messaging".emails' FROM "messaging".bridge_ledger, public.emails, my_emails`
	for want, n := range map[string]Name{text: Name{}.With("emails"), bridges: plain, all: plain.With("emails")} {
		if got := n.In(text); got != want {
			t.Errorf("it becomes %s, must become %s", got, want)
		}
	}
}

func TestANameThatNoServerKeepsIsRefused(t *testing.T) {
	for _, name := range []string{"a\nb", "a\x00", "\xff", strings.Repeat("a", 129)} {
		if _, err := PostgreSQL(name); err == nil || !strings.Contains(err.Error(), "schema") {
			t.Errorf("PostgreSQL takes %q: %v", name, err)
		}
		if _, err := SQLServer(name); err == nil || !strings.Contains(err.Error(), "schema") {
			t.Errorf("SQL Server takes %q: %v", name, err)
		}
	}
	if _, err := PostgreSQL(`a\b`); err == nil {
		t.Error("PostgreSQL takes a backslash")
	}
	if n, err := SQLServer(`a\b`); err != nil || n.Quoted() != `[a\b]` || n.String() != `a\b` {
		t.Errorf("SQL Server does not take a backslash: %v", err)
	}
}
