package tds

import (
	"slices"
	"strings"
)

// uniqueKeysOf is the library's expression for the number of unique indexes on a column alone.
const uniqueKeysOf = `(SELECT count(*) FROM sys.indexes x WHERE x.object_id = c.object_id AND x.is_unique = 1 AND x.has_filter = 0 AND x.is_disabled = 0 AND (SELECT max(k.column_id) FROM sys.index_columns k WHERE k.object_id = x.object_id AND k.index_id = x.index_id AND k.key_ordinal > 0 HAVING count(*) = 1) = c.column_id)`

// The library's queries of the catalogue.
var catalogueStatements = []statement{
	form(`SELECT CAST(i.[identity] AS binary(16)) AS [identity], (SELECT max(version_id) FROM bridge_ledger_version) AS version, CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(60)) AS updateability, `+productColumns+`, d.compatibility_level AS compatibility, d.delayed_durability_desc AS durability, TYPE_NAME(c.system_type_id) AS key_type, `+uniqueKeysOf+` AS unique_keys FROM sys.databases d LEFT JOIN bridge_identity i ON 1 = 1 LEFT JOIN sys.columns c ON c.object_id = OBJECT_ID('bridge_ledger') AND c.name = 'id' WHERE d.«(name = DB_NAME\(\)|database_id = DB_ID\(\))»`,
		state),
	form(`SELECT SCHEMA_NAME(o.schema_id) AS in_schema, o.name AS in_table, o.type_desc AS kind, COALESCE(OBJECTPROPERTY(o.object_id, 'TableIsMemoryOptimized'), 0) AS in_memory, c.name AS name, TYPE_NAME(c.system_type_id) AS type, `+uniqueKeysOf+` AS unique_keys, (SELECT count(*) FROM sys.indexes x WHERE x.object_id = o.object_id AND x.type_desc = 'CLUSTERED COLUMNSTORE') AS columnstores, (SELECT count(*) FROM sys.indexes x WHERE x.object_id = o.object_id AND x.allow_row_locks = 0) AS no_row_locks FROM sys.objects o LEFT JOIN sys.columns c ON c.object_id = o.object_id AND c.name = @p2 WHERE o.object_id = OBJECT_ID(@p1)`,
		inspect),
}

// visible returns a table or view, or nil if the catalogue hides it from the login: if VIEW
// DEFINITION is denied, or it does not exist.
func (x *execution) visible(name string) *table {
	if slices.Contains(x.server.denied, "VIEW DEFINITION ON "+name) {
		return nil
	}
	return x.db.tables[name]
}

// columnOf returns the name and the type of a column, nil if it does not exist, and the number of
// unique indexes on it alone.
func (t *table) columnOf(column string) (name, kind any, uniqueKeys int) {
	if t == nil || t.columns[column] == "" {
		return nil, nil, 0
	}
	for _, i := range t.indexes {
		if i.unique && !i.filtered && !i.disabled && slices.Equal(i.columns, []string{column}) {
			uniqueKeys++
		}
	}
	return column, t.columns[column], uniqueKeys
}

// qualified returns the table's schema and its name.
func (t *table) qualified() (schema, name string) {
	if schema, name, found := strings.Cut(t.name, "."); found {
		return schema, name
	}
	return "dbo", t.name
}

func state(x *execution, words []string) {
	version := x.version("bridge_ledger_version")
	identities := x.plain("bridge_identity")
	_, keyType, uniqueKeys := x.visible("bridge_ledger").columnOf("id")
	x.out.describe(column{"identity", kindBinary}, column{"version", kindInt}, column{"updateability", kindText},
		column{"product", kindText}, column{"edition", kindInt}, column{"babelfish", kindInt},
		column{"compatibility", kindInt}, column{"durability", kindText}, column{"key_type", kindText}, column{"unique_keys", kindInt})
	if !x.isThisDatabase(words[1]) {
		return
	}
	var identity any
	for _, r := range identities {
		id := r["identity"].(guid)
		identity = id[:]
	}
	product, edition, babelfish := x.product()
	x.out.row(identity, version, x.updateability(), product, edition, babelfish, x.db.compatibility, x.durability(), keyType, uniqueKeys)
}

func inspect(x *execution, _ []string) {
	asked, isText := x.parameters["@p1"].(string)
	wanted, areTexts := x.parameters["@p2"].(string)
	if !isText || !areTexts {
		panic(unknown("parameter", "@p1 or @p2"))
	}
	x.out.describe(column{"in_schema", kindText}, column{"in_table", kindText}, column{"kind", kindText},
		column{"in_memory", kindInt}, column{"name", kindText}, column{"type", kindText}, column{"unique_keys", kindInt},
		column{"columnstores", kindInt}, column{"no_row_locks", kindInt})
	t := x.visible(unquoted(asked))
	if t == nil {
		return
	}
	schema, name := t.qualified()
	found, kind, uniqueKeys := t.columnOf(wanted)
	columnstores, noRowLocks := 0, 0
	for _, i := range t.indexes {
		columnstores += count(i.columnstore)
		noRowLocks += count(i.noRowLocks)
	}
	x.out.row(schema, name, t.kind, count(t.inMemory), found, kind, uniqueKeys, columnstores, noRowLocks)
}
