package tds

import (
	"slices"
	"strings"
)

// The library's queries of properties and rights.
var diagnoseStatements = []statement{
	form(`SELECT `+productColumns+`, CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(60)) AS updateability, d.compatibility_level AS compatibility, d.delayed_durability_desc AS durability, CAST(d.is_read_committed_snapshot_on AS int) AS rcsi, d.snapshot_isolation_state_desc AS snapshots, COALESCE(CAST(DATABASEPROPERTYEX(DB_NAME(), 'IsOptimizedLockingOn') AS int), 0) AS optimized, COALESCE((SELECT t.lock_escalation_desc FROM sys.tables t WHERE t.object_id = OBJECT_ID(@p1)), '') AS escalation, (SELECT count(*) FROM sys.indexes x WHERE x.object_id = OBJECT_ID(@p1) AND x.allow_page_locks = 1) AS page_locks, COALESCE((SELECT SUM(p.rows) FROM sys.partitions p WHERE p.object_id = OBJECT_ID('bridge_ledger') AND p.index_id IN (0, 1)), 0) AS row_count, COALESCE((SELECT CAST(t.is_replicated AS int) FROM sys.tables t WHERE t.object_id = OBJECT_ID(@p1)), 0) AS published, COALESCE((SELECT CAST(t.is_merge_published AS int) + CAST(t.is_sync_tran_subscribed AS int) FROM sys.tables t WHERE t.object_id = OBJECT_ID(@p1)), 0) AS merged FROM sys.databases d WHERE d.«(name = DB_NAME\(\)|database_id = DB_ID\(\))»`,
		properties),
	form(`SELECT `+productColumns+`, d.delayed_durability_desc AS durability FROM sys.databases d WHERE d.«(name = DB_NAME\(\)|database_id = DB_ID\(\))»`,
		func(x *execution, words []string) {
			x.out.describe(column{"product", kindText}, column{"edition", kindInt}, column{"babelfish", kindInt}, column{"durability", kindText})
			if !x.isThisDatabase(words[1]) {
				return
			}
			product, edition, babelfish := x.product()
			x.out.row(product, edition, babelfish, x.durability())
		}),
	form(`SELECT count(*) FROM sys.security_predicates f JOIN sys.security_policies p ON p.object_id = f.object_id WHERE f.target_object_id = OBJECT_ID(@p1) AND f.predicate_type = 0 AND p.is_enabled = 1`,
		func(x *execution, _ []string) {
			name, _ := x.parameters["@p1"].(string)
			there, hidden := slices.Contains(x.server.denied, "ROWS ON "+unquoted(name)), slices.Contains(x.server.denied, "ALTER ANY SECURITY POLICY")
			x.number(count(there && !hidden))
		}),
	form(`SELECT QUOTENAME(USER_NAME())`, func(x *execution, _ []string) {
		x.out.describe(column{"", kindText})
		x.out.row("[dbo]")
	}),
	form(`SELECT w.name + ' ON ' + w.relation AS missing FROM (VALUES «((?:\('\w+', '\w+'\)(?:, )?)+)») AS w (relation, name) WHERE COALESCE(HAS_PERMS_BY_NAME(w.relation, 'OBJECT', w.name), 0) = 0`,
		missingRights),
	form(`SELECT count(*) FROM dbo.syspublications p JOIN dbo.sysarticles a ON a.pubid = p.pubid WHERE a.objid = OBJECT_ID(@p1) AND p.options & 1 = 1`,
		func(x *execution, _ []string) {
			if slices.Contains(x.server.denied, "SELECT ON syspublications") {
				panic(denied("SELECT", "syspublications"))
			}
			name, _ := x.parameters["@p1"].(string)
			x.number(count(x.server.replicated[unquoted(name)] == PeerToPeer))
		}),
}

// Replication is a kind of replication of a table between servers.
type Replication int

const (
	OneWay     Replication = iota + 1 // transactional: is_replicated of 'sys.tables'
	PeerToPeer                        // that and the option 0x1 of 'syspublications'
	Merge                             // is_merge_published of 'sys.tables'
)

// Replicate makes the catalogue report a table as replicated, without other effects.
func (s *Server) Replicate(table string, how Replication) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replicated = map[string]Replication{table: how}
}

const productColumns = `CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(60)) AS product, COALESCE(CAST(SERVERPROPERTY('EngineEdition') AS int), 0) AS edition, COALESCE(CAST(SERVERPROPERTY('babelfish') AS int), 0) AS babelfish`

// product returns the values of productColumns: 'SERVERPROPERTY (Transact-SQL)'. Azure SQL Database
// and Babelfish report version 12.
func (x *execution) product() (version string, edition, babelfish int) {
	version, edition = "16.0.1000.6", 3
	switch o := x.server.options; {
	case o.Azure:
		version, edition = "12.0.2000.8", 5
	case o.Babelfish:
		version, babelfish = "12.0.2000.8", 1
	}
	if x.server.options.Version != "" {
		version = x.server.options.Version
	}
	return version, edition, babelfish
}

// isThisDatabase reports whether a condition on sys.databases finds the current database.
func (x *execution) isThisDatabase(condition string) bool {
	return !x.server.options.Azure || strings.HasPrefix(condition, "name")
}

// durability returns delayed_durability_desc, which is null on Babelfish 4.3: measured.
func (x *execution) durability() any {
	if x.server.options.Babelfish {
		return nil
	}
	return x.db.durability
}

func properties(x *execution, words []string) {
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
	x.out.describe(column{"product", kindText}, column{"edition", kindInt}, column{"babelfish", kindInt},
		column{"updateability", kindText}, column{"compatibility", kindInt}, column{"durability", kindText}, column{"rcsi", kindInt},
		column{"snapshots", kindText}, column{"optimized", kindInt}, column{"escalation", kindText}, column{"page_locks", kindInt},
		column{"row_count", kindInt}, column{"published", kindInt}, column{"merged", kindInt})
	how := x.server.replicated[unquoted(name)]
	if !x.isThisDatabase(words[1]) {
		return
	}
	product, edition, babelfish := x.product()
	x.out.row(product, edition, babelfish, x.updateability(), x.db.compatibility, x.durability(),
		count(x.db.snapshot), snapshots, count(x.server.options.OptimizedLocking), escalation, pageLocks, rows, count(how == OneWay || how == PeerToPeer), count(how == Merge))
}

func missingRights(x *execution, words []string) {
	x.out.describe(column{"missing", kindText})
	for _, pair := range list(words[1]) {
		relation, name, _ := strings.Cut(strings.Trim(pair, "()"), ", ")
		right := strings.Trim(name, "'") + " ON " + strings.Trim(relation, "'")
		if x.db.tables[strings.Trim(relation, "'")] == nil || slices.Contains(x.server.denied, right) {
			x.out.row(right)
		}
	}
}
