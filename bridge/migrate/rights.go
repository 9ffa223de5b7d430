package migrate

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// A Role is the task of a login. Each role should have a login of its own.
type Role string

// The roles.
const (
	Sender    Role = "sender"    // records messages
	Canceller Role = "canceller" // a sender that also calls Cancel
	Verifier  Role = "verifier"  // judges messages, stages carried ones, sweeps orphans
	Receiver  Role = "receiver"  // uses all of package idempotency
	Effects   Role = "effects"   // a receiver that uses AtMostOnce, Accept and Work only
	Migrator  Role = "migrate"   // makes the tables
	Operator  Role = "operator"  // reads all tables, and acts on the ledger's and the inbox's, as bridgectl does
)

// Roles returns all roles.
func Roles() []Role {
	return []Role{Sender, Canceller, Verifier, Receiver, Effects, Migrator, Operator}
}

// tableRights are the rights of the roles on the bridge's tables, as 'rights ON table'. A role
// includes the rights of like.
var tableRights = map[Role]struct {
	like   Role
	rights []string
}{
	Sender:    {"", []string{"INSERT ON bridge_ledger", "SELECT ON bridge_identity", "SELECT ON bridge_ledger_version"}},
	Canceller: {Sender, []string{"SELECT, DELETE ON bridge_ledger"}},
	Verifier:  {Sender, []string{"SELECT, DELETE ON bridge_ledger", "SELECT, UPDATE ON bridge_watermark", "UPDATE (stage_at) ON bridge_ledger"}},
	Receiver:  {Effects, []string{"SELECT, INSERT, UPDATE ON bridge_mark", "SELECT, INSERT, DELETE ON bridge_kept"}},
	Effects:   {"", []string{"SELECT ON bridge_inbox_version", "SELECT, INSERT, DELETE ON bridge_inbox", "SELECT, INSERT, UPDATE, DELETE ON bridge_inbox_pending"}},
	Operator: {Verifier, []string{"UPDATE (recorded_at) ON bridge_ledger", "SELECT ON bridge_inbox_version", "SELECT ON bridge_inbox", "SELECT, UPDATE, DELETE ON bridge_inbox_pending",
		"SELECT, INSERT, UPDATE ON bridge_mark", "SELECT, DELETE ON bridge_kept"}},
}

// onInbox matches a right on a table of the inbox.
var onInbox = regexp.MustCompile(`\bON bridge_(inbox|mark|kept)`)

func partOf(right string) Part {
	if onInbox.MatchString(right) {
		return InboxPart
	}
	return LedgerPart
}

// Rights returns the least rights of a role's login in a database of this kind, each in the form
// between GRANT and TO. database is the database's name as written in a statement, which MySQL
// needs for Migrator. ledger and inbox are the schemas of the two parts' tables, and the rights
// name them. For "" the rights on a schema name public or dbo, and the rights on tables name the
// table alone. With parts, only the rights on these parts are included, for tables in different
// databases; without parts, the rights on both. Grant the rights after the migration, in
// the tables' database. With an own table (bridge.OwnTable) sender and verifier also need SELECT on
// it. SQLite has no logins, which is an error.
func Rights(dialect Dialect, role Role, database string, ledger, inbox Schema, parts ...Part) ([]string, error) {
	if !slices.Contains(Roles(), role) {
		return nil, fmt.Errorf("role %q is not known", role)
	}
	in := make(map[Part]schema.Name)
	for part, s := range map[Part]Schema{LedgerPart: ledger, InboxPart: inbox} {
		if len(parts) > 0 && !slices.Contains(parts, part) {
			continue
		}
		name, err := s.in(dialect)
		if err != nil {
			return nil, err
		}
		in[part] = name
	}
	var rights []string
	for at := role; at != ""; at = tableRights[at].like {
		rights = slices.Concat(tableRights[at].rights, rights)
	}
	wanted := func(part Part) bool { _, ok := in[part]; return ok }
	rights = slices.DeleteFunc(rights, func(right string) bool { return !wanted(partOf(right)) })
	var schemas []string // schemas that the role uses
	standard := map[Dialect]string{PostgreSQL: "public", SQLServer: "dbo"}[dialect]
	for _, part := range []Part{LedgerPart, InboxPart} {
		on := func(right string) bool { return partOf(right) == part }
		if wanted(part) && (role == Migrator || slices.ContainsFunc(rights, on)) {
			schemas = append(schemas, cmp.Or(in[part].Quoted(), standard))
		}
	}
	schemas = slices.Compact(schemas)
	judges := (role == Verifier || role == Operator) && wanted(LedgerPart)
	switch dialect {
	case PostgreSQL:
		for i, schema := range schemas {
			rights = slices.Insert(rights, i, "USAGE ON SCHEMA "+schema)
		}
		if judges {
			rights = append(rights, "EXECUTE ON FUNCTION bridge_committed, bridge_forget, bridge_due, bridge_claim, bridge_touch")
		}
		if role == Migrator {
			for _, schema := range schemas {
				rights = append(rights, "CREATE ON SCHEMA "+schema)
			}
		}
	case MySQL:
		for i := range rights { // Claim writes its own ID into the row
			rights[i] = strings.Replace(rights[i], "(stage_at)", "(stage_at, claimed_by)", 1)
		}
		if role == Migrator {
			rights = append(rights, "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX ON "+database+".*")
		}
	case SQLServer:
		for i := range rights { // on SQL Server the right is on the whole table
			rights[i] = strings.Replace(rights[i], "(stage_at) ", "", 1)
		}
		rights = slices.DeleteFunc(rights, func(right string) bool { return strings.HasPrefix(right, "UPDATE (recorded_at) ") })
		if role == Migrator {
			rights = append(rights, "CREATE TABLE")
			for _, schema := range schemas {
				rights = append(rights, "ALTER, SELECT, INSERT, UPDATE ON SCHEMA::"+schema)
			}
		}
	default:
		return nil, fmt.Errorf("%s has no logins; the permissions of the file decide", dialect)
	}
	for i, right := range rights {
		rights[i] = in[partOf(right)].In(right)
	}
	return rights, nil
}
