// Package schema puts the bridge's tables and functions into a schema of their own.
//
// All statements of the bridge are written with bare names, such as bridge_ledger. Only Name.In
// writes a schema before them.
package schema

import (
	"fmt"
	"maps"
	"regexp"
	"strings"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// A Name is the schema of the bridge's tables. The zero Name is none: the connection's settings
// find the tables.
type Name struct {
	name     string
	quoted   string    // with a full stop after it; empty for none
	national string    // begins a literal that contains the name
	known    *sync.Map // cache of In
	names              // the names that In puts the schema before
}

// names find the names of tables and functions in a statement.
type names struct {
	owned map[string]bool
	// token matches the parts of a statement that In checks. A name in quotes or in a comment
	// stays, and so does a name with a schema. name matches in literals.
	token, name *regexp.Regexp
}

// PostgreSQL returns a schema by its name in the catalogue, or the zero Name if name is empty.
func PostgreSQL(name string) (Name, error) {
	const most = 63 // the server cuts off a longer name
	if len(name) > most {
		return Name{}, fmt.Errorf("schema %q is %d bytes long, must be at most %d", name, len(name), most)
	}
	if strings.Contains(name, `\`) { // under some settings it is an escape in literals
		return Name{}, fmt.Errorf("schema %q contains a backslash: rename the schema", name)
	}
	return of(name, `"`, `"`, "")
}

// SQLServer does the same for SQL Server.
func SQLServer(name string) (Name, error) {
	const most = 128
	if n := len(utf16.Encode([]rune(name))); n > most {
		return Name{}, fmt.Errorf("schema %q is %d characters long, must be at most %d", name, n, most)
	}
	return of(name, "[", "]", "N")
}

func of(name, opening, closing, national string) (Name, error) {
	if !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return Name{}, fmt.Errorf("schema %q contains a control character, or is not UTF-8: rename the schema", name)
	}
	if name == "" {
		return Name{}, nil
	}
	quoted := opening + strings.ReplaceAll(name, closing, closing+closing) + closing + "."
	return Name{name, quoted, national, new(sync.Map), bridges}, nil
}

func namesOf(owned map[string]bool) names {
	all := make([]string, 0, len(owned))
	for name := range owned {
		all = append(all, regexp.QuoteMeta(name))
	}
	name := `\.?\b(?:` + strings.Join(all, "|") + `)\b`
	return names{owned, regexp.MustCompile(`\bN'(?:[^']|'')*'|'(?:[^']|'')*'|"[^"]*"|\[(?:[^\]]|\]\])*\]|--[^\n]*|` + name), regexp.MustCompile(name)}
}

// With returns a Name whose In also puts the schema before tables, which are a program's own.
func (n Name) With(tables ...string) Name {
	if n.quoted == "" || len(tables) == 0 {
		return n
	}
	owned := maps.Clone(n.owned)
	for _, table := range tables {
		owned[table] = true
	}
	n.known, n.names = new(sync.Map), namesOf(owned)
	return n
}

// bridges are the bridge's tables and functions. Names of indexes and constraints take no schema.
var bridges = namesOf(map[string]bool{
	"bridge_ledger": true, "bridge_identity": true, "bridge_watermark": true, "bridge_parked": true, "bridge_ledger_version": true,
	"bridge_inbox": true, "bridge_inbox_pending": true, "bridge_mark": true, "bridge_kept": true, "bridge_inbox_version": true,
	"bridge_committed": true, "bridge_forget": true, "bridge_due": true, "bridge_claim": true, "bridge_touch": true,
})

// In returns a statement with the schema before the names of the bridge's tables and functions,
// also in literals. It caches its results, so a statement must contain no values. The zero Name
// returns the statement unchanged.
func (n Name) In(statement string) string {
	if n.quoted == "" {
		return statement
	}
	if known, ok := n.known.Load(statement); ok {
		return known.(string)
	}
	text := n.token.ReplaceAllStringFunc(statement, n.qualify)
	n.known.Store(statement, text)
	return text
}

func (n Name) qualify(part string) string {
	switch {
	case n.owned[part]:
		return n.quoted + part
	case part[0] != '\'' && part[0] != 'N':
		return part
	}
	literal := n.names.name.ReplaceAllStringFunc(part, func(word string) string {
		if n.owned[word] {
			return strings.ReplaceAll(n.quoted, "'", "''") + word
		}
		return word
	})
	if literal != part && part[0] == '\'' {
		return n.national + literal
	}
	return literal
}

// Fix returns the fix for missing tables. setting is the setting that finds the tables without
// a schema.
func (n Name) Fix(setting string) string {
	if n.quoted == "" {
		return "call migrate.Ledger or migrate.Inbox, and check that " + setting + " is the same everywhere"
	}
	return fmt.Sprintf("call migrate.Ledger or migrate.Inbox through migrate.Schema(%q), or correct the name", n.name)
}

// IsSet reports whether there is a schema.
func (n Name) IsSet() bool { return n.quoted != "" }

// String returns the name in the catalogue's spelling.
func (n Name) String() string { return n.name }

// Quoted returns the name as an identifier.
func (n Name) Quoted() string { return strings.TrimSuffix(n.quoted, ".") }
