package sqlserver

import "strings"

// The texts that read a table of IDs, of which $table and $column are the names.
const (
	// One row at least if the identity is right, with a null id if nothing is
	// found. READPAST passes over rows; for other locks LOCK_TIMEOUT 0 does not wait
	// either. LOOP fixes the join, FORCESEEK that it comes past no other row.
	committed = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 0;
SELECT CAST(l.$column AS binary(16)) AS id FROM bridge_identity i
LEFT JOIN ($asked INNER LOOP JOIN $table l WITH (READCOMMITTEDLOCK, READPAST, ROWLOCK, FORCESEEK) ON l.$column = asked.id) ON 1 = 1
WHERE i.[identity] = CAST(@p3 AS uniqueidentifier)` + keepPlan

	// On a readable secondary, which a connection may come to after a failover, the
	// server would ignore the hints and read an old state.
	settleBySelect = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SELECT (SELECT count(*) FROM bridge_identity WHERE [identity] = CAST(@p2 AS uniqueidentifier)) AS own,
	(SELECT count(*) FROM $table WITH (READCOMMITTEDLOCK, ROWLOCK, FORCESEEK) WHERE $column = CAST(@p1 AS uniqueidentifier)) AS found,
	CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(60)) AS updateability` + keepPlan
)

// lookups are the statements that read the IDs of one table.
type lookups struct {
	table     string
	committed statement
	settle    string
	rights    string // that they need, in the words of GRANT
}

var inLedger = lookupsIn("bridge_ledger", "id")

// lookupsIn takes names as they stand in a statement.
func lookupsIn(table, column string) lookups {
	return lookups{
		table:     table,
		committed: forIDs(committed, "$table", table, "$column", column),
		settle:    strings.NewReplacer("$table", table, "$column", column).Replace(settleBySelect),
		rights:    "SELECT ON " + table + ", SELECT ON bridge_identity",
	}
}
