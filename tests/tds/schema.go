package tds

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// table returns a table for whose use the login has the right, when nobody is
// changing it.
func (x *execution) table(right, name string) (*table, error) {
	for {
		l := x.db.locks[resource{name, ""}]
		if l == nil || l.owner == x.tx {
			break
		}
		if err := x.wait(l); err != nil {
			return nil, err
		}
	}
	t := x.db.tables[name]
	if t == nil {
		return nil, noObject(name)
	}
	if slices.Contains(x.server.denied, right+" ON "+name) {
		return nil, denied(right, name)
	}
	if x.server.happens(Deadlock) {
		return nil, errDeadlock
	}
	return t, nil
}

func (x *execution) readable(name string) (*table, error) { return x.table("SELECT", name) }

func (x *execution) writable(right, name string) (*table, error) {
	if x.onSecondary() {
		return nil, errReadOnly
	}
	return x.table(right, name)
}

// plain returns the rows that a SELECT without hints reads.
func (x *execution) plain(name string) ([]row, error) {
	t, err := x.readable(name)
	if err != nil {
		return nil, err
	}
	how, err := x.reading("")
	if err != nil {
		return nil, err
	}
	return x.scan(t, how)
}

// keyOf is a row's place in the table. Where there is no unique key it is the order.
func (t *table) keyOf(r row) string {
	if len(t.key) == 0 {
		return fmt.Sprintf("row %d", t.last)
	}
	key := ""
	for _, c := range t.key {
		key += fmt.Sprintf("%q ", fmt.Sprint(r[c]))
	}
	return key
}

// The statements on tables and databases.
var schemaStatements = []statement{
	form(`SELECT CAST(i.[identity] AS binary(16)) AS [identity], (SELECT max(version_id) FROM bridge_ledger_version) AS version, CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(60)) AS updateability, d.compatibility_level AS compatibility, d.delayed_durability_desc AS durability, (SELECT TYPE_NAME(c.system_type_id) FROM sys.columns c WHERE c.object_id = OBJECT_ID('bridge_ledger') AND c.name = 'id') AS key_type, (SELECT count(*) FROM sys.indexes x WHERE x.object_id = OBJECT_ID('bridge_ledger') AND x.is_unique = 1 AND x.has_filter = 0 AND (SELECT max(COL_NAME(k.object_id, k.column_id)) FROM sys.index_columns k WHERE k.object_id = x.object_id AND k.index_id = x.index_id HAVING count(*) = 1) = 'id') AS unique_keys FROM bridge_identity i CROSS JOIN sys.databases d WHERE d.database_id = DB_ID()`,
		state),
	form(`CREATE TABLE «(\w+)» («(.*)»)`, createTable),
	form(`DROP TABLE «(\w+)»`, func(x *execution, words []string) (uint64, error) {
		t, err := x.changing(words[1])
		if err != nil {
			return 0, err
		}
		delete(x.db.tables, t.name)
		x.tx.undo = append(x.tx.undo, func() { x.db.tables[t.name] = t })
		return 0, nil
	}),
	form(`ALTER TABLE «(\w+)» SET (LOCK_ESCALATION = DISABLE)`, func(x *execution, words []string) (uint64, error) {
		_, err := x.changing(words[1])
		return 0, err
	}),
	form(`CREATE UNIQUE INDEX «\w+» ON «(\w+)» (version_id)`, func(x *execution, words []string) (uint64, error) {
		_, err := x.changing(words[1]) // it holds already: see createTable
		return 0, err
	}),
	form(`CREATE DATABASE «(\w+)»`, func(x *execution, words []string) (uint64, error) {
		x.server.create(words[1])
		return 0, nil
	}),
	form(`DROP DATABASE «(\w+)»`, func(x *execution, words []string) (uint64, error) {
		delete(x.server.databases, words[1])
		return 0, nil
	}),
	form(`ALTER DATABASE «(\w+)» SET «(\w+) (?:= )?(\w+)»`, alterDatabase),
}

// changing locks a table that is about to change.
func (x *execution) changing(name string) (*table, error) {
	if err := x.lock(resource{name, ""}); err != nil {
		return nil, err
	}
	return x.writable("ALTER", name)
}

var (
	keyClause  = regexp.MustCompile(`PRIMARY KEY(?: CLUSTERED)? \(([^)]*)\)`)
	definition = regexp.MustCompile(`^\[?(\w+)\]? (\w+)`)
)

// createTable reads the names and types of the columns, and the unique key. A
// table of versions is unique by version from the start.
func createTable(x *execution, words []string) (uint64, error) {
	if x.onSecondary() {
		return 0, errReadOnly
	}
	t := &table{name: words[1], columns: make(map[string]string), rows: make(map[string]row)}
	if err := x.lock(resource{t.name, ""}); err != nil {
		return 0, err
	}
	if x.db.tables[t.name] != nil {
		return 0, exists(t.name)
	}
	for part := range strings.SplitSeq(words[2], ", ") {
		part = strings.TrimSpace(part)
		if d := definition.FindStringSubmatch(part); d != nil && d[1] != "CONSTRAINT" {
			t.columns[d[1]] = d[2]
			if strings.Contains(part, "PRIMARY KEY") {
				t.key = []string{d[1]}
			}
		}
	}
	if clause := keyClause.FindStringSubmatch(words[2]); clause != nil {
		t.key = strings.Split(strings.NewReplacer("[", "", "]", "").Replace(clause[1]), ", ")
	}
	if t.columns["version_id"] != "" {
		t.key = []string{"version_id"}
	}
	x.db.tables[t.name] = t
	x.tx.undo = append(x.tx.undo, func() { delete(x.db.tables, t.name) })
	return 0, nil
}

func alterDatabase(x *execution, words []string) (uint64, error) {
	db := x.server.databases[words[1]]
	if strings.EqualFold(words[1], "CURRENT") {
		db = x.db
	}
	if db == nil {
		return 0, noObject(words[1])
	}
	value := strings.ToUpper(words[3])
	switch strings.ToUpper(words[2]) {
	case "READ_COMMITTED_SNAPSHOT":
		db.snapshot = value == "ON"
	case "ALLOW_SNAPSHOT_ISOLATION":
	case "COMPATIBILITY_LEVEL":
		db.compatibility, _ = strconv.ParseInt(value, 10, 64)
	case "DELAYED_DURABILITY":
		db.durability = value
	default:
		return 0, unknown("option", words[2])
	}
	return 0, nil
}

// state tells what the library asks of the database before it uses it.
func state(x *execution, _ []string) (uint64, error) {
	version, err := x.version("bridge_ledger_version")
	if err != nil {
		return 0, err
	}
	identities, err := x.plain("bridge_identity")
	if err != nil {
		return 0, err
	}
	var keyType any
	unique := 0
	if ledger := x.db.tables["bridge_ledger"]; ledger != nil {
		keyType = ledger.columns["id"]
		if slices.Equal(ledger.key, []string{"id"}) {
			unique = 1
		}
	}
	x.out.describe(column{"identity", kindBinary}, column{"version", kindInt}, column{"updateability", kindText},
		column{"compatibility", kindInt}, column{"durability", kindText}, column{"key_type", kindText}, column{"unique_keys", kindInt})
	for _, r := range identities {
		id := r["identity"].(guid)
		x.out.row(id[:], version, x.updateability(), x.db.compatibility, x.db.durability, keyType, unique)
	}
	return uint64(len(identities)), nil
}
