package tds

import (
	"regexp"
	"slices"
	"strings"
	"time"
)

// option is a hint on the plan of a statement, which does not change the statement's effect.
const option = `«(?: OPTION \(KEEPFIXED PLAN\))?»`

// instanceColumn is the library's expression for the server instance.
const instanceColumn = `CONCAT(@@SERVERNAME, ' ', (SELECT CONVERT(nvarchar(30), create_date, 126) FROM sys.databases WHERE name = 'tempdb')) AS instance`

// The statements of bridge/sqlserver.
var ledgerStatements = []statement{
	changes(`INSERT INTO bridge_ledger (id) SELECT asked.id FROM bridge_identity i CROSS JOIN $asked WHERE i.[identity] = CAST(@p3 AS uniqueidentifier)`+option,
		func(x *execution, words []string) uint64 {
			return x.record("@p3", x.asked(words[1]))
		}),
	changes(`INSERT INTO bridge_ledger (id) SELECT CAST(@p1 AS uniqueidentifier) FROM bridge_identity WHERE [identity] = CAST(@p2 AS uniqueidentifier)`,
		func(x *execution, _ []string) uint64 {
			return x.record("@p2", []guid{x.guid("@p1")})
		}),
	form(`SELECT CAST(«(l|asked)».$name AS binary(16)) AS id«(`+regexp.QuoteMeta(`, `+instanceColumn)+`)?» FROM bridge_identity i LEFT JOIN ($asked INNER LOOP JOIN $name l WITH («([A-Z, ]+)») ON l.$name = asked.id) ON 1 = 1 WHERE i.[identity] = CAST(@p3 AS uniqueidentifier)`+option,
		func(x *execution, words []string) {
			if words[1] == "l" && words[2] != words[7] || words[1] == "asked" && words[2] != "id" {
				panic(unknown("column", words[2]))
			}
			x.lookUp(words[4], place{words[5], words[7], words[6]}, words[1] == "l")
		}),
	form(`SELECT CAST(asked.id AS binary(16)) AS id, `+instanceColumn+` FROM bridge_identity i LEFT JOIN ($asked INNER LOOP JOIN bridge_ledger l WITH («([A-Z, ]+)») ON l.id = asked.id AND l.recorded_at BETWEEN DATEADD(millisecond, -@p4, sysutcdatetime()) AND sysutcdatetime()) ON 1 = 1 WHERE i.[identity] = CAST(@p3 AS uniqueidentifier)`+option,
		func(x *execution, words []string) {
			ids := x.asked(words[1])
			milliseconds, _ := x.parameters["@p4"].(int64)
			until := now()
			since := until.Add(-time.Duration(milliseconds) * time.Millisecond)
			x.lookUpWhere(ids, place{"bridge_ledger", "id", words[2]}, func(r row) bool {
				at := r["recorded_at"].(time.Time)
				return !at.Before(since) && !at.After(until)
			})
		}),
	form(`SELECT count(*) FROM sys.databases WHERE name = DB_NAME() AND is_read_committed_snapshot_on = @p1`,
		func(x *execution, _ []string) {
			x.number(count(int64(count(x.db.snapshot)) == x.parameters["@p1"]))
		}),
	form(`SELECT (SELECT count(*) FROM bridge_identity WHERE [identity] = CAST(@p3 AS uniqueidentifier)) AS own, (SELECT count(*) FROM $asked INNER LOOP JOIN $name l WITH («([A-Z, ]+)») ON l.$name = asked.id) AS found`+option,
		func(x *execution, words []string) {
			x.expectRows(words[1], place{words[2], words[4], words[3]})
		}),
	form(`SELECT (SELECT count(*) FROM bridge_identity WHERE [identity] = CAST(@p2 AS uniqueidentifier)) AS own, (SELECT count(*) FROM $name WITH («([A-Z, ]+)») WHERE $name = CAST(@p1 AS uniqueidentifier)) AS found, CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(60)) AS updateability, `+instanceColumn+option,
		func(x *execution, words []string) {
			x.settle(place{words[1], words[3], words[2]})
		}),
	form(`SELECT `+instanceColumn, func(x *execution, _ []string) {
		x.out.describe(column{"instance", kindText})
		x.out.row(x.instance())
	}),
	form(`DELETE l OUTPUT deleted.id FROM $asked INNER LOOP JOIN bridge_ledger l WITH («([A-Z, ]+)») ON l.id = asked.id`+option,
		func(x *execution, words []string) {
			x.changeFree("DELETE", words[1], words[2], func(row) (row, bool) { return nil, true })
		}),
}

// own reports whether the parameter is the ledger's identity.
func (x *execution) own(parameter string) bool {
	wanted := x.guid(parameter)
	return slices.ContainsFunc(x.plain("bridge_identity"), func(r row) bool { return r["identity"] == wanted })
}

func (x *execution) record(identity string, ids []guid) (recorded uint64) {
	ledger := x.writable("INSERT", "bridge_ledger")
	if !x.own(identity) {
		return 0
	}
	for _, id := range ids {
		recorded += x.insert(ledger, row{"id": id})
	}
	return recorded
}

// A place is a table and its column in which IDs are looked up, as written in the statement, and
// the hints.
type place struct{ table, column, hints string }

// find returns the IDs that have a row.
func (x *execution) find(ids []guid, in place) []guid {
	return x.findWhere(ids, in, func(row) bool { return true })
}

func (x *execution) findWhere(ids []guid, in place, wanted func(row) bool) (found []guid) {
	t := x.readable(unquoted(in.table))
	column := unquoted(in.column)
	if !slices.Equal(t.key, []string{column}) {
		panic(unknown("lookup", "by "+column+", which is not the key"))
	}
	if strings.Contains(in.hints, "ROWLOCK") && x.noRowLocks(t) {
		panic(errNoRowLocks)
	}
	how := x.reading(in.hints)
	x.seek(t, in.hints, how)
	hidden := slices.Contains(x.server.denied, "ROWS ON "+t.name)
	for _, id := range ids {
		if r := x.read(t, t.keyOf(row{column: id}), how); r != nil && !hidden && wanted(r) {
			found = append(found, id)
		}
	}
	return found
}

// noRowLocks reports whether ROWLOCK is an error on a table: 'MSSQLSERVER_651'. A test may deny
// 'ROWLOCK ON table', for a reason that the catalogue does not show.
func (x *execution) noRowLocks(t *table) bool {
	return slices.ContainsFunc(t.indexes, func(i *index) bool { return i.columnstore || i.noRowLocks }) || slices.Contains(x.server.denied, "ROWLOCK ON "+t.name)
}

// lookUpWhere answers with the IDs of the wanted rows.
func (x *execution) lookUpWhere(ids []guid, in place, wanted func(row) bool) {
	x.showIDs(x.own("@p3"), x.findWhere(ids, in, wanted))
}

func (x *execution) showIDs(own bool, found []guid) {
	x.out.describe(column{"id", kindBinary}, column{"instance", kindText})
	switch {
	case !own:
		return
	case len(found) == 0:
		x.out.row(nil, x.instance())
	}
	for _, id := range found {
		x.out.row(id[:], x.instance())
	}
}

// lookUp answers with the table's column or with the requested IDs. A masked column shows masked
// values to a login without UNMASK; conditions use the real values: 'Dynamic data masking'.
func (x *execution) lookUp(places string, in place, shows bool) {
	own := x.own("@p3")
	found := x.find(x.asked(places), in)
	if shows && x.db.tables[unquoted(in.table)].masked[unquoted(in.column)] && slices.Contains(x.server.denied, "UNMASK") {
		clear(found)
	}
	x.showIDs(own, found)
}

func (x *execution) expectRows(places string, in place) {
	own := x.own("@p3")
	found := x.find(x.asked(places), in)
	x.out.describe(column{"own", kindInt}, column{"found", kindInt})
	x.out.row(count(own), len(found))
}

func (x *execution) settle(in place) {
	own := x.own("@p2")
	found := x.find([]guid{x.guid("@p1")}, in)
	x.out.describe(column{"own", kindInt}, column{"found", kindInt}, column{"updateability", kindText}, column{"instance", kindText})
	x.out.row(count(own), len(found), x.updateability(), x.instance())
}

// instance returns @@SERVERNAME and the creation time of tempdb, in style 126.
func (x *execution) instance() string {
	return "STAND-IN " + x.server.started.Format("2006-01-02T15:04:05.999")
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (x *execution) updateability() string {
	if x.onSecondary() {
		return "READ_ONLY"
	}
	return "READ_WRITE"
}
