package tds

import (
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// table waits until no other session is changing a table, and returns the table if the login has
// the right.
func (x *execution) table(right, name string) *table {
	for {
		l := x.db.locks[resource{name, ""}]
		if l == nil || l.owner == x.tx {
			break
		}
		x.wait(l)
	}
	t := x.db.tables[name]
	if t == nil {
		panic(noObject(name))
	}
	if slices.Contains(x.server.denied, right+" ON "+name) {
		panic(denied(right, name))
	}
	if x.server.happens(Deadlock) {
		panic(errDeadlock)
	}
	if right != "INSERT" {
		t.readBy(x)
	}
	return t
}

func (x *execution) readable(name string) *table { return x.table("SELECT", name) }

func (x *execution) writable(right, name string) *table {
	if x.onSecondary() {
		panic(errReadOnly)
	}
	t := x.table(right, name)
	filtered := func(i *index) bool { return i.filtered }
	if x.notQuoted && right != "ALTER" && slices.ContainsFunc(t.indexes, filtered) {
		panic(errSetOptions)
	}
	return t
}

// plain returns the rows of a table as a SELECT without hints reads them.
func (x *execution) plain(name string) []row {
	t := x.readable(name)
	how := x.reading("")
	return x.scan(t, how)
}

// keyOf returns a row's key in the table. Without a unique key it is the position in the order of
// insertion.
func (t *table) keyOf(r row) string {
	if len(t.key) == 0 {
		return fmt.Sprintf("row %d", t.last)
	}
	key := ""
	for _, c := range t.key {
		value := fmt.Sprint(r[c])
		if strings.HasPrefix(t.columns[c], "varbinary") {
			value = strings.TrimRight(value, "\x00")
		}
		key += fmt.Sprintf("%q ", value)
	}
	return key
}

// The statements on tables and databases.
var schemaStatements = []statement{
	form(`SELECT count(*) FROM sys.schemas WHERE name = @p1`, func(x *execution, _ []string) {
		asked, _ := x.parameters["@p1"].(string)
		x.number(count(asked == "dbo" || slices.Contains(x.db.schemas, asked)))
	}),
	form(`CREATE SCHEMA $name`, func(x *execution, words []string) {
		x.db.schemas = append(x.db.schemas, unquoted(words[1]))
	}),
	form(`CREATE TABLE $name («(.*?)»)«( WITH \(MEMORY_OPTIMIZED = ON[^)]*\))?»`, createTable),
	form(`CREATE VIEW $name AS SELECT NEWID() AS id`, func(x *execution, words []string) {
		x.create(&table{name: unquoted(words[1]), kind: "VIEW", columns: map[string]string{"id": uniqueIdentifier}})
	}),
	form(`CREATE «(UNIQUE )?»INDEX «(\w+)» ON $name («([\w, ]+)»)«(?: INCLUDE \(\w+\))?»«( WHERE .+?)?»«( WITH \(ALLOW_PAGE_LOCKS = OFF(?:, STATISTICS_NORECOMPUTE = ON)?\))?»`, createIndex),
	form(`CREATE CLUSTERED COLUMNSTORE INDEX «(\w+)» ON $name`, func(x *execution, words []string) {
		t := x.changing(unquoted(words[2]))
		t.indexes = append(t.indexes, &index{name: words[1], columnstore: true})
		x.tx.undo = append(x.tx.undo, func() { t.indexes = t.indexes[:len(t.indexes)-1] })
	}),
	form(`CREATE NONCLUSTERED COLUMNSTORE INDEX «\w+» ON $name («[\w, ]+»)`, func(x *execution, words []string) {
		x.changing(unquoted(words[1])) // it is separate from the table, which keeps its row locks
	}),
	form(`ALTER INDEX «(\w+)» ON $name DISABLE`, disableIndex),
	form(`DROP «(?:TABLE|VIEW)» $name`, func(x *execution, words []string) {
		t := x.changing(unquoted(words[1]))
		delete(x.db.tables, t.name)
		x.tx.undo = append(x.tx.undo, func() { x.db.tables[t.name] = t })
	}),
	form(`ALTER TABLE $name ADD «(.+ NULL)»`, addColumns),
	changes(`UPDATE l SET message = p.message, stage_at = l.recorded_at FROM bridge_parked p INNER JOIN bridge_ledger l ON l.id = p.id WHERE l.stage_at IS NULL`, carryParked),
	// The tests' statements.
	changes(`INSERT INTO bridge_parked (id, message) VALUES ('«([^']+)»', 0x«([0-9a-f]*)»)`, func(x *execution, words []string) uint64 {
		t := x.writable("INSERT", "bridge_parked")
		message, err := hex.DecodeString(words[2])
		if err != nil {
			panic(unknown("message", words[2]))
		}
		return x.insert(t, row{"id": parseGUID(words[1]), "message": string(message)})
	}),
	form(`ALTER TABLE $name DROP COLUMN «([\w, ]+)»`, dropColumns),
	form(`DROP INDEX «(\w+)» ON $name`, dropIndex),
	form(`ALTER TABLE «(\w+)» SET (LOCK_ESCALATION = «(DISABLE|TABLE|AUTO)»)`, func(x *execution, words []string) {
		t := x.changing(words[1])
		before := t.escalation
		t.escalation = strings.ToUpper(words[2])
		x.tx.undo = append(x.tx.undo, func() { t.escalation = before })
	}),
	form(`ALTER INDEX ALL ON «(\w+)» SET (ALLOW_«(PAGE|ROW)»_LOCKS = «(ON|OFF)»)`, func(x *execution, words []string) {
		t := x.changing(words[1])
		on := strings.EqualFold(words[3], "ON")
		for _, i := range t.indexes {
			before := *i
			if strings.EqualFold(words[2], "PAGE") {
				i.pageLocks = on
			} else {
				i.noRowLocks = !on
			}
			x.tx.undo = append(x.tx.undo, func() { *i = before })
		}
	}),
	form(`ALTER INDEX «(\w+)» ON «(\w+)» SET (IGNORE_DUP_KEY = ON)`, func(x *execution, words []string) {
		t := x.changing(words[2])
		t.ignoresDuplicates = true
		x.tx.undo = append(x.tx.undo, func() { t.ignoresDuplicates = false })
	}),
	form(`CREATE DATABASE «(\w+)»`, func(x *execution, words []string) {
		x.server.create(words[1])
	}),
	form(`DROP DATABASE «(\w+)»`, func(x *execution, words []string) {
		delete(x.server.databases, words[1])
	}),
	form(`ALTER DATABASE «(\w+)» SET «(\w+) (?:= )?(\w+)(?: WITH ROLLBACK IMMEDIATE)?»`, alterDatabase),
}

// carryParked copies the parked messages into the rows of the ledger.
func carryParked(x *execution, _ []string) uint64 {
	parked := x.readable("bridge_parked")
	ledger := x.writable("UPDATE", "bridge_ledger")
	changed := uint64(0)
	for _, p := range x.scan(parked, waiting) {
		key := ledger.keyOf(row{"id": p["id"]})
		if x.absent(ledger, key) {
			continue
		}
		x.lock(resource{ledger.name, key})
		if r := maps.Clone(ledger.rows[key]); r != nil && r["stage_at"] == nil {
			r["message"], r["stage_at"] = p["message"], r["recorded_at"]
			x.put(ledger, key, r)
			changed++
		}
	}
	return changed
}

// changing locks a table before it is changed.
func (x *execution) changing(name string) *table {
	x.lock(resource{name, ""})
	return x.writable("ALTER", name)
}

// create creates a table or a view.
func (x *execution) create(t *table) {
	if x.onSecondary() {
		panic(errReadOnly)
	}
	if slices.Contains(x.server.denied, "CREATE TABLE") {
		panic(&sqlError{262, 14, "CREATE TABLE permission denied in database."})
	}
	if slices.Contains(x.server.denied, "ALTER ON SCHEMA") {
		panic(errNoSchema)
	}
	x.lock(resource{t.name, ""})
	if x.db.tables[t.name] != nil {
		panic(exists(t.name))
	}
	if schema, _ := t.qualified(); schema != "dbo" && !slices.Contains(x.db.schemas, schema) {
		panic(errNoSchema)
	}
	x.db.tables[t.name] = t
	x.tx.undo = append(x.tx.undo, func() { delete(x.db.tables, t.name) })
}

var (
	constraint = regexp.MustCompile(`^(?:CONSTRAINT \w+ )?(?:PRIMARY KEY|UNIQUE)(?: CLUSTERED| NONCLUSTERED)? \(([^)]*)\)`)
	definition = regexp.MustCompile(`^(` + oneName + `) (\w+)`)
	isKey      = regexp.MustCompile(`\b(?:PRIMARY KEY|UNIQUE)\b`)
)

// createTable reads the names and types of the columns, and the unique key, if there is one. A
// table of versions is unique by version from the start.
func createTable(x *execution, words []string) {
	t := &table{name: unquoted(words[1]), kind: "USER_TABLE", inMemory: words[3] != "", escalation: "TABLE", noRecompute: strings.Contains(words[2], "STATISTICS_NORECOMPUTE = ON"),
		columns: make(map[string]string), rows: make(map[string]row)}
	for _, part := range list(words[2]) {
		var key []string
		if c := constraint.FindStringSubmatch(part); c != nil {
			key = unquotedAll(list(c[1]))
		} else if d := definition.FindStringSubmatch(part); d != nil {
			column := unquoted(d[1])
			t.columns[column] = d[2]
			if strings.Contains(part, " MASKED WITH ") {
				t.masked = map[string]bool{column: true}
			}
			if isKey.MatchString(part) {
				key = []string{column}
			}
		} else {
			panic(unknown("part of a table", part))
		}
		if key != nil && t.key != nil {
			panic(unknown("table", "with two keys"))
		}
		if key != nil {
			t.key = key
		}
	}
	if t.columns["version_id"] != "" {
		t.key = []string{"version_id"}
	}
	if t.key != nil {
		t.indexes = append(t.indexes, &index{columns: t.key, unique: true, pageLocks: !strings.Contains(words[2], "ALLOW_PAGE_LOCKS = OFF")})
	}
	x.create(t)
}

// createIndex creates an index. A unique one becomes the table's key if the table has neither a key
// nor rows.
func createIndex(x *execution, words []string) {
	t := x.changing(unquoted(words[3]))
	i := &index{name: words[2], columns: unquotedAll(list(words[4])), unique: words[1] != "", filtered: words[5] != "", pageLocks: words[6] == ""}
	for _, c := range i.columns {
		if t.columns[c] == "" || slices.Contains(x.added, c) {
			panic(&sqlError{1911, 16, "Column name '" + c + "' does not exist in the target table or view."})
		}
	}
	if i.filtered && x.notQuoted {
		panic(errSetOptions)
	}
	key := t.key
	if i.unique && !i.filtered && !slices.Equal(key, i.columns) {
		if key != nil || len(t.rows) > 0 {
			panic(unknown("unique index", "on a table with a key or rows"))
		}
		t.key = i.columns
	}
	t.indexes = append(t.indexes, i)
	x.tx.undo = append(x.tx.undo, func() { t.indexes, t.key = t.indexes[:len(t.indexes)-1], key })
}

func disableIndex(x *execution, words []string) {
	t := x.changing(unquoted(words[2]))
	for _, i := range t.indexes {
		if i.name == words[1] {
			i.disabled = true
			x.tx.undo = append(x.tx.undo, func() { i.disabled = false })
			return
		}
	}
	panic(noObject(words[1]))
}

func alterDatabase(x *execution, words []string) {
	db := x.server.databases[words[1]]
	if strings.EqualFold(words[1], "CURRENT") {
		db = x.db
	}
	if db == nil {
		panic(noObject(words[1]))
	}
	value := strings.ToUpper(words[3])
	switch strings.ToUpper(words[2]) {
	case "READ_COMMITTED_SNAPSHOT":
		db.snapshot = value == "ON"
	case "ALLOW_SNAPSHOT_ISOLATION":
		db.snapshots = value == "ON"
	case "COMPATIBILITY_LEVEL":
		db.compatibility, _ = strconv.ParseInt(value, 10, 64)
	case "DELAYED_DURABILITY":
		db.durability = value
	default:
		panic(unknown("option", words[2]))
	}
}
