package tds

import (
	"slices"
	"strings"
)

// What the library asks of properties and rights.
var diagnoseStatements = []statement{
	form(`SELECT CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(60)) AS version, CAST(PARSENAME(CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(60)), 4) AS int) AS major, COALESCE(CAST(SERVERPROPERTY('EngineEdition') AS int), 0) AS edition, COALESCE(CAST(SERVERPROPERTY('babelfish') AS int), 0) AS babelfish, CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(60)) AS updateability, d.compatibility_level AS compatibility, d.delayed_durability_desc AS durability, CAST(d.is_read_committed_snapshot_on AS int) AS rcsi, d.snapshot_isolation_state_desc AS snapshots, COALESCE(CAST(DATABASEPROPERTYEX(DB_NAME(), 'IsOptimizedLockingOn') AS int), 0) AS optimized, COALESCE((SELECT t.lock_escalation_desc FROM sys.tables t WHERE t.object_id = OBJECT_ID(@p1)), '') AS escalation, (SELECT count(*) FROM sys.indexes x WHERE x.object_id = OBJECT_ID(@p1) AND x.allow_page_locks = 1) AS page_locks, COALESCE((SELECT SUM(p.rows) FROM sys.partitions p WHERE p.object_id = OBJECT_ID('bridge_ledger') AND p.index_id IN (0, 1)), 0) AS row_count, COALESCE(HAS_PERMS_BY_NAME(NULL, NULL, 'VIEW SERVER STATE'), 0) AS sees_server, COALESCE(HAS_PERMS_BY_NAME(DB_NAME(), 'DATABASE', 'VIEW DATABASE STATE'), 0) AS sees_database FROM sys.databases d WHERE d.database_id = DB_ID()`,
		properties),
	form(`SELECT w.name + ' ON ' + w.relation AS missing FROM (VALUES «((?:\('\w+', '\w+'\)(?:, )?)+)») AS w (relation, name) WHERE COALESCE(HAS_PERMS_BY_NAME(w.relation, 'OBJECT', w.name), 0) = 0`,
		missingRights),
}

// edition is that of SQL Server itself, none of Azure's.
const edition = 3

func properties(x *execution, _ []string) (uint64, error) {
	name, _ := x.parameters["@p1"].(string)
	var escalation string
	pageLocks := 0
	if t := x.visible(unquoted(name)); t != nil {
		escalation = t.escalation
		for _, i := range t.indexes {
			pageLocks += count(i.pageLocks)
		}
	}
	rows := 0
	if t := x.visible("bridge_ledger"); t != nil {
		rows = len(t.rows)
	}
	snapshots := "OFF"
	if x.db.snapshots {
		snapshots = "ON"
	}
	x.out.describe(column{"version", kindText}, column{"major", kindInt}, column{"edition", kindInt}, column{"babelfish", kindInt},
		column{"updateability", kindText}, column{"compatibility", kindInt}, column{"durability", kindText}, column{"rcsi", kindInt},
		column{"snapshots", kindText}, column{"optimized", kindInt}, column{"escalation", kindText}, column{"page_locks", kindInt},
		column{"row_count", kindInt}, column{"sees_server", kindInt}, column{"sees_database", kindInt})
	sees := count(!slices.Contains(x.server.denied, viewServerState))
	x.out.row("16.0.1000.6", 16, edition, count(x.server.options.IgnoreHints), x.updateability(), x.db.compatibility, x.db.durability,
		count(x.db.snapshot), snapshots, 0, escalation, pageLocks, rows, sees, sees)
	return 1, nil
}

func missingRights(x *execution, words []string) (uint64, error) {
	x.out.describe(column{"missing", kindText})
	var missing uint64
	for _, pair := range list(words[1]) {
		relation, name, _ := strings.Cut(strings.Trim(pair, "()"), ", ")
		right := strings.Trim(name, "'") + " ON " + strings.Trim(relation, "'")
		if x.db.tables[strings.Trim(relation, "'")] == nil || slices.Contains(x.server.denied, right) {
			x.out.row(right)
			missing++
		}
	}
	return missing, nil
}
