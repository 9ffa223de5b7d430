package tds

import (
	"maps"
	"strconv"
	"strings"
	"time"
)

// The statements of bridge/sqlserver on orphans and the watermark.
var orphanStatements = []statement{
	form(`DELETE l OUTPUT deleted.id FROM $asked INNER LOOP JOIN bridge_ledger l WITH («([A-Z, ]+)») ON l.id = asked.id WHERE l.recorded_at < CAST(@p3 AS datetime2(3)) AND l.stage_at IS NULL`,
		func(x *execution, words []string) {
			before := x.time("@p3")
			x.changeFree("DELETE", words[1], words[2], func(r row) (row, bool) {
				return nil, r["recorded_at"].(time.Time).Before(before) && r["stage_at"] == nil
			})
		}),
	form(`SELECT CAST(o.id AS binary(16)) AS id, CONVERT(nvarchar(23), o.recorded_at, 126) AS recorded_at FROM bridge_identity i LEFT JOIN ( SELECT TOP (@p2) l.id, l.recorded_at FROM bridge_ledger l«(?: WITH \(([A-Z, ]+)\))?» WHERE l.recorded_at < DATEADD(second, -@p1, sysutcdatetime()) AND l.stage_at IS NULL ORDER BY l.recorded_at, l.id ) o ON 1 = 1 WHERE i.[identity] = CAST(@p3 AS uniqueidentifier) ORDER BY o.recorded_at, o.id`, orphans),

	changes(`INSERT INTO bridge_watermark (one) VALUES (1)`, func(x *execution, _ []string) uint64 {
		t := x.writable("INSERT", "bridge_watermark")
		return x.insert(t, row{"one": true})
	}),
	changes(`UPDATE bridge_watermark SET swept_before = CASE WHEN swept_before > CAST(@p1 AS datetime2(3)) THEN swept_before ELSE CAST(@p1 AS datetime2(3)) END WHERE EXISTS (SELECT * FROM bridge_identity WHERE [identity] = CAST(@p2 AS uniqueidentifier))`, raise),
	form(`SELECT CONVERT(nvarchar(23), w.swept_before, 126) AS swept_before, CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(60)) AS updateability FROM bridge_identity i CROSS JOIN bridge_watermark w WHERE i.[identity] = CAST(@p1 AS uniqueidentifier)`, sweptBefore),

	// The tests' statements.
	changes(`UPDATE bridge_ledger SET recorded_at = DATEADD(hour, «(-?\d+)», recorded_at)«(?:, stage_at = DATEADD\(hour, (-?\d+), stage_at\))?»«(?: WHERE id = '([^']+)')?»`,
		func(x *execution, words []string) uint64 {
			add := func(r row, column, hours string) {
				n, _ := strconv.Atoi(hours)
				if at, ok := r[column].(time.Time); ok {
					r[column] = at.Add(time.Duration(n) * time.Hour)
				}
			}
			return x.changeOne(words[3], func(r row) row {
				add(r, "recorded_at", words[1])
				add(r, "stage_at", words[2])
				return r
			})
		}),
	changes(`UPDATE bridge_ledger SET recorded_at = '«([^']+)»'`, func(x *execution, words []string) uint64 {
		at := parseTime(words[1])
		return x.changeOne("", func(r row) row {
			r["recorded_at"] = at
			return r
		})
	}),
	changes(`DELETE FROM bridge_ledger WHERE id = '«([^']+)»'`, func(x *execution, words []string) uint64 {
		return x.changeOne(words[1], func(row) row { return nil })
	}),
	form(`CREATE TRIGGER refuse ON $name INSTEAD OF DELETE AS THROW 50000, 'refused', 1`,
		func(x *execution, words []string) {
			x.changing(unquoted(words[1])).refuses = true
		}),
}

// changeFree changes the rows of the packed IDs that no other session has locked, and outputs their
// IDs and further columns. change returns the new row, and whether the row is to be changed.
func (x *execution) changeFree(right, places, hints string, change func(row) (row, bool), further ...column) {
	ids := x.asked(places)
	ledger := x.writable(right, "bridge_ledger")
	how := x.reading(hints)
	x.seek(ledger, hints, how)
	x.out.describe(append([]column{{"id", kindGUID}}, further...)...)
	for _, id := range ids {
		key := ledger.keyOf(row{"id": id})
		if l := x.db.locks[resource{ledger.name, key}]; how == skipping && l != nil && l.owner != x.tx && x.skipped(l) {
			continue
		}
		if x.absent(ledger, key) || x.stopped() {
			continue
		}
		if r := ledger.rows[key]; r != nil {
			if _, wanted := change(maps.Clone(r)); !wanted {
				continue // READ COMMITTED keeps no lock of an unchanged row
			}
		}
		x.lock(resource{ledger.name, key}) // waits if hints are ignored
		r := ledger.rows[key]
		if r == nil {
			continue
		}
		after, wanted := change(maps.Clone(r))
		if !wanted {
			continue
		}
		if after == nil && ledger.refuses {
			panic(errRefused)
		}
		x.put(ledger, key, after)
		values := []any{id[:]}
		for _, c := range further {
			values = append(values, bytesOrNil(after[c.name]))
		}
		x.out.row(values...)
	}
}

var errRefused = &sqlError{334, 16, "The target table of the DML statement cannot have any enabled triggers if the statement contains an OUTPUT clause without INTO clause."}

// changeOne changes the row of an ID, or all rows if id is empty.
func (x *execution) changeOne(id string, change func(row) row) uint64 {
	ledger := x.writable("UPDATE", "bridge_ledger")
	if id == "" {
		return x.change(ledger, change)
	}
	return x.changeByKey("UPDATE", ledger.name, "FORCESEEK", row{"id": parseGUID(id)}, change)
}

func orphans(x *execution, words []string) {
	if strings.Contains(words[1], "FORCESEEK") {
		panic(errNoPlan) // the query has no key to seek
	}
	own := x.own("@p3")
	ledger := x.readable("bridge_ledger")
	how := x.reading(words[1])
	rows := x.scan(ledger, how)
	seconds, _ := x.parameters["@p1"].(int64)
	before := now().Add(-time.Duration(seconds) * time.Second)
	var found []row
	for _, r := range rows {
		if r["recorded_at"].(time.Time).Before(before) && r["stage_at"] == nil {
			found = append(found, r)
		}
	}
	sortByTime(found, "recorded_at")
	found = found[:min(len(found), x.top("@p2"))]
	x.out.describe(column{"id", kindBinary}, column{"recorded_at", kindText})
	switch {
	case !own:
		return
	case len(found) == 0:
		x.out.row(nil, nil)
	}
	for _, r := range found {
		id := r["id"].(guid)
		x.out.row(id[:], x.style126(r["recorded_at"]))
	}
}

func raise(x *execution, _ []string) uint64 {
	before := x.time("@p1")
	t := x.writable("UPDATE", "bridge_watermark")
	if !x.own("@p2") {
		return 0
	}
	x.change(t, func(r row) row {
		if high, ok := r["swept_before"].(time.Time); !ok || before.After(high) {
			r["swept_before"] = before
		}
		return r
	})
	return uint64(len(t.rows)) // counts unchanged rows too
}

func sweptBefore(x *execution, _ []string) {
	own := x.own("@p1")
	rows := x.plain("bridge_watermark")
	x.out.describe(column{"swept_before", kindText}, column{"updateability", kindText})
	if !own || len(rows) == 0 {
		return
	}
	x.out.row(x.style126(rows[0]["swept_before"]), x.updateability())
}
