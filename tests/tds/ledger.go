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
	form(`INSERT INTO bridge_ledger (id) SELECT asked.id FROM bridge_identity i CROSS JOIN $asked WHERE i.[identity] = CAST(@p3 AS uniqueidentifier)`+option,
		func(x *execution, words []string) (uint64, error) {
			ids, err := x.asked(words[1])
			if err != nil {
				return 0, err
			}
			return x.record("@p3", ids)
		}),
	form(`INSERT INTO bridge_ledger (id) SELECT CAST(@p1 AS uniqueidentifier) FROM bridge_identity WHERE [identity] = CAST(@p2 AS uniqueidentifier)`,
		func(x *execution, _ []string) (uint64, error) {
			id, err := x.guid("@p1")
			if err != nil {
				return 0, err
			}
			return x.record("@p2", []guid{id})
		}),
	form(`SELECT CAST(«(l|asked)».$name AS binary(16)) AS id«(`+regexp.QuoteMeta(`, `+instanceColumn)+`)?» FROM bridge_identity i LEFT JOIN ($asked INNER LOOP JOIN $name l WITH («([A-Z, ]+)») ON l.$name = asked.id) ON 1 = 1 WHERE i.[identity] = CAST(@p3 AS uniqueidentifier)`+option,
		func(x *execution, words []string) (uint64, error) {
			if words[1] == "l" && words[2] != words[7] || words[1] == "asked" && words[2] != "id" {
				return 0, unknown("column", words[2])
			}
			return x.lookUp(words[4], place{words[5], words[7], words[6]}, words[1] == "l")
		}),
	form(`SELECT CAST(asked.id AS binary(16)) AS id, `+instanceColumn+` FROM bridge_identity i LEFT JOIN ($asked INNER LOOP JOIN bridge_ledger l WITH («([A-Z, ]+)») ON l.id = asked.id AND l.recorded_at BETWEEN DATEADD(millisecond, -@p4, sysutcdatetime()) AND sysutcdatetime()) ON 1 = 1 WHERE i.[identity] = CAST(@p3 AS uniqueidentifier)`+option,
		func(x *execution, words []string) (uint64, error) {
			ids, err := x.asked(words[1])
			if err != nil {
				return 0, err
			}
			milliseconds, _ := x.parameters["@p4"].(int64)
			until := now()
			since := until.Add(-time.Duration(milliseconds) * time.Millisecond)
			return x.lookUpWhere(ids, place{"bridge_ledger", "id", words[2]}, func(r row) bool {
				at := r["recorded_at"].(time.Time)
				return !at.Before(since) && !at.After(until)
			})
		}),
	form(`SELECT count(*) FROM sys.databases WHERE name = DB_NAME() AND is_read_committed_snapshot_on = @p1`,
		func(x *execution, _ []string) (uint64, error) {
			return x.number(count(int64(count(x.db.snapshot)) == x.parameters["@p1"])), nil
		}),
	form(`SELECT (SELECT count(*) FROM bridge_identity WHERE [identity] = CAST(@p3 AS uniqueidentifier)) AS own, (SELECT count(*) FROM $asked INNER LOOP JOIN $name l WITH («([A-Z, ]+)») ON l.$name = asked.id) AS found`+option,
		func(x *execution, words []string) (uint64, error) {
			return x.expectRows(words[1], place{words[2], words[4], words[3]})
		}),
	form(`SELECT (SELECT count(*) FROM bridge_identity WHERE [identity] = CAST(@p2 AS uniqueidentifier)) AS own, (SELECT count(*) FROM $name WITH («([A-Z, ]+)») WHERE $name = CAST(@p1 AS uniqueidentifier)) AS found, CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(60)) AS updateability, `+instanceColumn+option,
		func(x *execution, words []string) (uint64, error) {
			return x.settle(place{words[1], words[3], words[2]})
		}),
	form(`SELECT `+instanceColumn, func(x *execution, _ []string) (uint64, error) {
		x.out.describe(column{"instance", kindText})
		x.out.row(x.instance())
		return 1, nil
	}),
	form(`DELETE l OUTPUT deleted.id FROM $asked INNER LOOP JOIN bridge_ledger l WITH («([A-Z, ]+)») ON l.id = asked.id`+option,
		func(x *execution, words []string) (uint64, error) {
			return x.changeFree("DELETE", words[1], words[2], func(row) (row, bool) { return nil, true })
		}),
}

// own reports whether the parameter is the ledger's identity.
func (x *execution) own(parameter string) (bool, error) {
	wanted, err := x.guid(parameter)
	if err != nil {
		return false, err
	}
	rows, err := x.plain("bridge_identity")
	return slices.ContainsFunc(rows, func(r row) bool { return r["identity"] == wanted }), err
}

func (x *execution) record(identity string, ids []guid) (uint64, error) {
	ledger, err := x.writable("INSERT", "bridge_ledger")
	if err != nil {
		return 0, err
	}
	own, err := x.own(identity)
	if err != nil || !own {
		return 0, err
	}
	for _, id := range ids {
		if err := x.insert(ledger, row{"id": id}); err != nil {
			return 0, err
		}
	}
	return uint64(len(ids)), nil
}

// A place is a table and its column in which IDs are looked up, as written in the statement, and
// the hints.
type place struct{ table, column, hints string }

// find returns the IDs that have a row.
func (x *execution) find(ids []guid, in place) (found []guid, err error) {
	return x.findWhere(ids, in, func(row) bool { return true })
}

func (x *execution) findWhere(ids []guid, in place, wanted func(row) bool) (found []guid, err error) {
	t, err := x.readable(unquoted(in.table))
	if err != nil {
		return nil, err
	}
	column := unquoted(in.column)
	if !slices.Equal(t.key, []string{column}) {
		return nil, unknown("lookup", "by "+column+", which is not the key")
	}
	if strings.Contains(in.hints, "ROWLOCK") && x.noRowLocks(t) {
		return nil, errNoRowLocks
	}
	how, err := x.reading(in.hints)
	if err != nil {
		return nil, err
	}
	if err := x.seek(t, in.hints, how); err != nil {
		return nil, err
	}
	hidden := slices.Contains(x.server.denied, "ROWS ON "+t.name)
	for _, id := range ids {
		r, err := x.read(t, t.keyOf(row{column: id}), how)
		if err != nil {
			return nil, err
		}
		if r != nil && !hidden && wanted(r) {
			found = append(found, id)
		}
	}
	return found, nil
}

// noRowLocks reports whether ROWLOCK is an error on a table: 'MSSQLSERVER_651'. A test may deny
// 'ROWLOCK ON table', for a reason that the catalogue does not show.
func (x *execution) noRowLocks(t *table) bool {
	return slices.ContainsFunc(t.indexes, func(i *index) bool { return i.columnstore || i.noRowLocks }) || slices.Contains(x.server.denied, "ROWLOCK ON "+t.name)
}

// lookUpWhere answers with the IDs of the wanted rows.
func (x *execution) lookUpWhere(ids []guid, in place, wanted func(row) bool) (uint64, error) {
	own, err := x.own("@p3")
	if err != nil {
		return 0, err
	}
	found, err := x.findWhere(ids, in, wanted)
	if err != nil {
		return 0, err
	}
	return x.showIDs(own, found), nil
}

func (x *execution) showIDs(own bool, found []guid) uint64 {
	x.out.describe(column{"id", kindBinary}, column{"instance", kindText})
	switch {
	case !own:
		return 0
	case len(found) == 0:
		x.out.row(nil, x.instance())
		return 1
	}
	for _, id := range found {
		x.out.row(id[:], x.instance())
	}
	return uint64(len(found))
}

// lookUp answers with the table's column or with the requested IDs. A masked column shows masked
// values to a login without UNMASK; conditions use the real values: 'Dynamic data masking'.
func (x *execution) lookUp(places string, in place, shows bool) (uint64, error) {
	own, err := x.own("@p3")
	if err != nil {
		return 0, err
	}
	ids, err := x.asked(places)
	if err != nil {
		return 0, err
	}
	found, err := x.find(ids, in)
	if err != nil {
		return 0, err
	}
	if shows && x.db.tables[unquoted(in.table)].masked[unquoted(in.column)] && slices.Contains(x.server.denied, "UNMASK") {
		clear(found)
	}
	return x.showIDs(own, found), nil
}

func (x *execution) expectRows(places string, in place) (uint64, error) {
	own, err := x.own("@p3")
	if err != nil {
		return 0, err
	}
	ids, err := x.asked(places)
	if err != nil {
		return 0, err
	}
	found, err := x.find(ids, in)
	if err != nil {
		return 0, err
	}
	x.out.describe(column{"own", kindInt}, column{"found", kindInt})
	x.out.row(count(own), len(found))
	return 1, nil
}

func (x *execution) settle(in place) (uint64, error) {
	own, err := x.own("@p2")
	if err != nil {
		return 0, err
	}
	id, err := x.guid("@p1")
	if err != nil {
		return 0, err
	}
	found, err := x.find([]guid{id}, in)
	if err != nil {
		return 0, err
	}
	x.out.describe(column{"own", kindInt}, column{"found", kindInt}, column{"updateability", kindText}, column{"instance", kindText})
	x.out.row(count(own), len(found), x.updateability(), x.instance())
	return 1, nil
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
