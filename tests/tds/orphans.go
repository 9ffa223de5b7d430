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
		func(x *execution, words []string) (uint64, error) {
			before, err := x.time("@p3")
			if err != nil {
				return 0, err
			}
			return x.changeFree("DELETE", words[1], words[2], func(r row) (row, bool) {
				return nil, r["recorded_at"].(time.Time).Before(before) && r["stage_at"] == nil
			})
		}),
	form(`SELECT CAST(o.id AS binary(16)) AS id, CONVERT(nvarchar(23), o.recorded_at, 126) AS recorded_at FROM bridge_identity i LEFT JOIN ( SELECT TOP (@p2) l.id, l.recorded_at FROM bridge_ledger l«(?: WITH \(([A-Z, ]+)\))?» WHERE l.recorded_at < DATEADD(second, -@p1, sysutcdatetime()) AND l.stage_at IS NULL ORDER BY l.recorded_at, l.id ) o ON 1 = 1 WHERE i.[identity] = CAST(@p3 AS uniqueidentifier) ORDER BY o.recorded_at, o.id`, orphans),

	form(`INSERT INTO bridge_watermark (one) VALUES (1)`, func(x *execution, _ []string) (uint64, error) {
		t, err := x.writable("INSERT", "bridge_watermark")
		if err != nil {
			return 0, err
		}
		return 1, x.insert(t, row{"one": true})
	}),
	form(`UPDATE bridge_watermark SET swept_before = CASE WHEN swept_before > CAST(@p1 AS datetime2(3)) THEN swept_before ELSE CAST(@p1 AS datetime2(3)) END WHERE EXISTS (SELECT * FROM bridge_identity WHERE [identity] = CAST(@p2 AS uniqueidentifier))`, raise),
	form(`SELECT CONVERT(nvarchar(23), w.swept_before, 126) AS swept_before, CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(60)) AS updateability FROM bridge_identity i CROSS JOIN bridge_watermark w WHERE i.[identity] = CAST(@p1 AS uniqueidentifier)`, sweptBefore),

	// The tests' statements.
	form(`UPDATE bridge_ledger SET recorded_at = DATEADD(hour, «(-?\d+)», recorded_at)«(?:, stage_at = DATEADD\(hour, (-?\d+), stage_at\))?»«(?: WHERE id = '([^']+)')?»`,
		func(x *execution, words []string) (uint64, error) {
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
	form(`UPDATE bridge_ledger SET recorded_at = '«([^']+)»'`, func(x *execution, words []string) (uint64, error) {
		at, err := parseTime(words[1])
		if err != nil {
			return 0, err
		}
		return x.changeOne("", func(r row) row {
			r["recorded_at"] = at
			return r
		})
	}),
	form(`DELETE FROM bridge_ledger WHERE id = '«([^']+)»'`, func(x *execution, words []string) (uint64, error) {
		return x.changeOne(words[1], func(row) row { return nil })
	}),
	form(`CREATE TRIGGER refuse ON $name INSTEAD OF DELETE AS THROW 50000, 'refused', 1`,
		func(x *execution, words []string) (uint64, error) {
			t, err := x.changing(unquoted(words[1]))
			if err == nil {
				t.refuses = true
			}
			return 0, err
		}),
}

// changeFree changes the rows of the packed IDs that no other session has locked, and outputs their
// IDs and further columns. change returns the new row, and whether the row is to be changed.
func (x *execution) changeFree(right, places, hints string, change func(row) (row, bool), further ...column) (uint64, error) {
	ids, err := x.asked(places)
	if err != nil {
		return 0, err
	}
	ledger, err := x.writable(right, "bridge_ledger")
	if err != nil {
		return 0, err
	}
	how, err := x.reading(hints)
	if err != nil {
		return 0, err
	}
	if err := x.seek(ledger, hints, how); err != nil {
		return 0, err
	}
	x.out.describe(append([]column{{"id", kindGUID}}, further...)...)
	var changed uint64
	for _, id := range ids {
		key := ledger.keyOf(row{"id": id})
		if l := x.db.locks[resource{ledger.name, key}]; how == skipping && l != nil && l.owner != x.tx && x.skipped(l) {
			continue
		}
		if x.absent(ledger, key) {
			continue
		}
		if r := ledger.rows[key]; r != nil {
			if _, wanted := change(maps.Clone(r)); !wanted {
				continue // READ COMMITTED keeps no lock of an unchanged row
			}
		}
		if err := x.lock(resource{ledger.name, key}); err != nil { // waits if hints are ignored
			return 0, err
		}
		r := ledger.rows[key]
		if r == nil {
			continue
		}
		after, wanted := change(maps.Clone(r))
		if !wanted {
			continue
		}
		if after == nil && ledger.refuses {
			return 0, errRefused
		}
		x.put(ledger, key, after)
		values := []any{id[:]}
		for _, c := range further {
			values = append(values, bytesOrNil(after[c.name]))
		}
		x.out.row(values...)
		changed++
	}
	return changed, nil
}

var errRefused = &sqlError{334, 16, "The target table of the DML statement cannot have any enabled triggers if the statement contains an OUTPUT clause without INTO clause."}

// changeOne changes the row of an ID, or all rows if id is empty.
func (x *execution) changeOne(id string, change func(row) row) (uint64, error) {
	ledger, err := x.writable("UPDATE", "bridge_ledger")
	if err != nil {
		return 0, err
	}
	if id == "" {
		return x.change(ledger, change)
	}
	wanted, err := parseGUID(id)
	if err != nil {
		return 0, err
	}
	return x.changeByKey("UPDATE", ledger.name, "FORCESEEK", row{"id": wanted}, change)
}

func orphans(x *execution, words []string) (uint64, error) {
	if strings.Contains(words[1], "FORCESEEK") {
		return 0, errNoPlan // the query has no key to seek
	}
	own, err := x.own("@p3")
	if err != nil {
		return 0, err
	}
	ledger, err := x.readable("bridge_ledger")
	if err != nil {
		return 0, err
	}
	how, err := x.reading(words[1])
	if err != nil {
		return 0, err
	}
	rows, err := x.scan(ledger, how)
	if err != nil {
		return 0, err
	}
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
		return 0, nil
	case len(found) == 0:
		x.out.row(nil, nil)
		return 1, nil
	}
	for _, r := range found {
		id := r["id"].(guid)
		x.out.row(id[:], x.style126(r["recorded_at"]))
	}
	return uint64(len(found)), nil
}

func raise(x *execution, _ []string) (uint64, error) {
	before, err := x.time("@p1")
	if err != nil {
		return 0, err
	}
	t, err := x.writable("UPDATE", "bridge_watermark")
	if err != nil {
		return 0, err
	}
	own, err := x.own("@p2")
	if err != nil || !own {
		return 0, err
	}
	_, err = x.change(t, func(r row) row {
		if high, ok := r["swept_before"].(time.Time); !ok || before.After(high) {
			r["swept_before"] = before
		}
		return r
	})
	return uint64(len(t.rows)), err // counts unchanged rows too
}

func sweptBefore(x *execution, _ []string) (uint64, error) {
	own, err := x.own("@p1")
	if err != nil {
		return 0, err
	}
	rows, err := x.plain("bridge_watermark")
	if err != nil {
		return 0, err
	}
	x.out.describe(column{"swept_before", kindText}, column{"updateability", kindText})
	if !own || len(rows) == 0 {
		return 0, nil
	}
	x.out.row(x.style126(rows[0]["swept_before"]), x.updateability())
	return 1, nil
}
