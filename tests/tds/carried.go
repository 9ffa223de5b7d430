package tds

import (
	"encoding/binary"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// movedTo is the library's expression that moves a stage time on.
const movedTo = `DATEADD(millisecond, CASE WHEN l.recorded_at > DATEADD(second, -10, @now) THEN 10000 WHEN l.recorded_at < DATEADD(minute, -10, @now) THEN 600000 ELSE DATEDIFF(millisecond, l.recorded_at, @now) END, CASE WHEN l.recorded_at > @now THEN l.recorded_at ELSE @now END)`

// The library's table of IDs with one or two further columns, which it unpacks from @p3.
var (
	askedMessages   = askedWith(`, CAST(SUBSTRING(@p3, (pos + 1) / 2, 4) AS int) AS begins, CAST(SUBSTRING(@p3, (pos + 1) / 2 + 4, 4) AS int) AS bytes`)
	askedStageTimes = askedWith(`, CAST(SUBSTRING(@p3, (pos + 1) / 2, 8) AS bigint) AS stage_ms`)
)

func askedWith(columns string) string {
	return strings.Replace(askedTable, " AS id FROM", " AS id"+columns+" FROM", 1)
}

// The statements of bridge/sqlserver on carried messages.
var carriedStatements = []statement{
	form(`DECLARE @now datetime2(3) = sysutcdatetime()`, func(x *execution, _ []string) {
		x.now = now()
	}),
	form(`DECLARE @now datetime2(3) = (SELECT MAX(t) FROM (VALUES (sysutcdatetime()), (CAST(@p7 AS datetime2(3)))) AS times (t))`, func(x *execution, _ []string) {
		first := x.time("@p7")
		if x.now = now(); x.now.Before(first) {
			x.now = first
		}
	}),
	changes(`DELETE l FROM bridge_ledger l WITH («([A-Z, ]+)») WHERE l.id = CAST(@p1 AS uniqueidentifier) AND l.stage_at <= l.recorded_at`+option, func(x *execution, words []string) uint64 {
		id := x.guid("@p1")
		return x.changeByKey("DELETE", "bridge_ledger", words[1], row{"id": id}, func(r row) row {
			if at, carried := r["stage_at"].(time.Time); !carried || at.After(r["recorded_at"].(time.Time)) {
				return r
			}
			return nil
		})
	}),
	form(`DECLARE @since datetime2(3) = CAST(@p1 AS datetime2(3))`, func(x *execution, _ []string) {
		x.since = x.time("@p1")
	}),
	changes(`INSERT INTO bridge_ledger (id, recorded_at, message, stage_at) SELECT asked.id, @now, SUBSTRING(@p4, asked.begins, asked.bytes), DATEADD(millisecond, @p6, @now) FROM bridge_identity i CROSS JOIN `+askedMessages+` WHERE i.[identity] = CAST(@p5 AS uniqueidentifier)`+option, carry),
	form(`SELECT CONVERT(nvarchar(23), @now, 126) AS now, CAST(d.id AS binary(16)) AS id, CONVERT(nvarchar(23), d.recorded_at, 126) AS recorded_at, CONVERT(nvarchar(23), d.stage_at, 126) AS stage_at, d.bytes FROM bridge_identity i LEFT JOIN ( SELECT TOP (@p2) l.id, l.recorded_at, l.stage_at, DATALENGTH(l.message) AS bytes FROM bridge_ledger l WITH («([A-Z, ]+)», INDEX (bridge_ledger_stage_at)) WHERE l.stage_at IS NOT NULL AND l.stage_at >= @since AND l.stage_at <= @now AND (l.stage_at > @since OR l.id > CAST(@p4 AS uniqueidentifier)) ORDER BY l.stage_at, l.id ) d ON 1 = 1 WHERE i.[identity] = CAST(@p3 AS uniqueidentifier) ORDER BY d.stage_at, d.id`+option, due),
	form(`UPDATE l SET stage_at = `+movedTo+` OUTPUT inserted.id, inserted.message FROM `+askedStageTimes+` INNER LOOP JOIN bridge_ledger l WITH («([A-Z, ]+)») ON l.id = asked.id WHERE DATEDIFF_BIG(millisecond, '19700101', l.stage_at) = asked.stage_ms`+option, claim),
	form(`UPDATE l SET stage_at = `+movedTo+` OUTPUT inserted.id FROM $asked INNER LOOP JOIN bridge_ledger l WITH («([A-Z, ]+)») ON l.id = asked.id WHERE l.stage_at IS NOT NULL`+option,
		func(x *execution, words []string) {
			x.changeFree("UPDATE", words[1], words[2], func(r row) (row, bool) {
				carried := r["stage_at"] != nil
				return x.moved(r), carried
			})
		}),
	form(`SELECT count(*) FROM ( SELECT TOP (@p1) l.stage_at FROM bridge_ledger l WITH («(?:([A-Z, ]+), )?»INDEX (bridge_ledger_stage_at)) WHERE l.stage_at IS NOT NULL ) carried`,
		func(x *execution, words []string) { x.number(len(x.carried(words[1], anyCarried))) }),
	form(`SELECT TOP (@p1) CONVERT(nvarchar(36), l.id) AS id, DATEDIFF_BIG(millisecond, '19700101', l.recorded_at) AS recorded_ms, DATEDIFF_BIG(millisecond, '19700101', l.stage_at) AS stage_ms, DATALENGTH(l.message) AS bytes FROM bridge_ledger l WITH («(?:([A-Z, ]+), )?»INDEX (bridge_ledger_stage_at)) WHERE l.stage_at IS NOT NULL ORDER BY l.stage_at, l.id`,
		func(x *execution, words []string) { x.showCarried(x.carried(words[1], anyCarried)) }),
	form(`SELECT count(*) FROM ( SELECT TOP (@p1) l.stage_at FROM bridge_ledger l WITH («(?:([A-Z, ]+), )?»INDEX (bridge_ledger_stage_at)) WHERE l.stage_at IS NOT NULL AND l.stage_at > sysutcdatetime() AND l.stage_at <= l.recorded_at ) carried`,
		func(x *execution, words []string) { x.number(len(x.carried(words[1], delayedAfter(now())))) }),
	form(`SELECT TOP (@p1) CONVERT(nvarchar(36), l.id) AS id, DATEDIFF_BIG(millisecond, '19700101', l.recorded_at) AS recorded_ms, DATEDIFF_BIG(millisecond, '19700101', l.stage_at) AS stage_ms, DATALENGTH(l.message) AS bytes FROM bridge_ledger l WITH («(?:([A-Z, ]+), )?»INDEX (bridge_ledger_stage_at)) WHERE l.stage_at IS NOT NULL AND l.stage_at > sysutcdatetime() AND l.stage_at <= l.recorded_at ORDER BY l.stage_at, l.id`,
		func(x *execution, words []string) { x.showCarried(x.carried(words[1], delayedAfter(now()))) }),
	changes(`UPDATE l SET recorded_at = @now, stage_at = @now FROM bridge_ledger l WITH («([A-Z, ]+)») WHERE l.id = CAST(@p1 AS uniqueidentifier) AND l.stage_at <= l.recorded_at AND l.stage_at > @now`, advance),
	form(`SELECT CONVERT(nvarchar(36), l.id) AS id, DATEDIFF_BIG(millisecond, '19700101', l.recorded_at) AS recorded_ms, DATEDIFF_BIG(millisecond, '19700101', l.stage_at) AS stage_ms, DATALENGTH(l.message) AS bytes FROM bridge_ledger l WITH («([A-Z, ]+)») WHERE l.id = CAST(@p1 AS uniqueidentifier) AND l.stage_at IS NOT NULL`, readCarried),
}

func carry(x *execution, words []string) (carried uint64) {
	ids := x.asked(words[1])
	ledger := x.writable("INSERT", "bridge_ledger")
	if !x.own("@p5") {
		return 0
	}
	pieces, _ := x.parameters["@p3"].([]byte)
	all, _ := x.parameters["@p4"].([]byte)
	grace, _ := x.parameters["@p6"].(int64)
	for i, id := range ids {
		if len(pieces) < 8*(i+1) {
			panic(unknown("parameter", "@p3, too short"))
		}
		begins, length := int(binary.BigEndian.Uint32(pieces[8*i:]))-1, int(binary.BigEndian.Uint32(pieces[8*i+4:]))
		if begins < 0 || begins+length > len(all) {
			panic(unknown("piece", "of @p4"))
		}
		carried += x.insert(ledger, row{"id": id, "recorded_at": x.now, "message": string(all[begins : begins+length]), "stage_at": x.now.Add(time.Duration(grace) * time.Millisecond)})
	}
	return carried
}

// due reads only the rows between two times in the index, and so waits for no others. Without the
// index the statement fails.
func due(x *execution, words []string) {
	own := x.own("@p3")
	ledger := x.readable("bridge_ledger")
	x.hinted(ledger, "bridge_ledger_stage_at")
	how := x.reading(words[1])
	x.seek(ledger, words[1], how)
	after := x.guid("@p4")
	isDue := func(r row) bool {
		at, carried := r["stage_at"].(time.Time)
		return carried && !at.After(x.now) && (at.After(x.since) || at.Equal(x.since) && compare(r["id"].(guid), after) > 0)
	}
	found := x.scanWhere(ledger, func(key string) bool {
		l := x.db.locks[resource{ledger.name, key}]
		return isDue(ledger.rows[key]) || l != nil && isDue(l.before) || isDue(x.asOf[resource{ledger.name, key}])
	}, how)
	found = slices.DeleteFunc(found, func(r row) bool { return !isDue(r) })
	sortByTime(found, "stage_at")
	found = found[:min(len(found), x.top("@p2"))]
	x.out.describe(column{"now", kindText}, column{"id", kindBinary}, column{"recorded_at", kindText}, column{"stage_at", kindText}, column{"bytes", kindInt})
	now := x.style126(x.now)
	switch {
	case !own:
		return
	case len(found) == 0:
		x.out.row(now, nil, nil, nil, nil)
	}
	for _, r := range found {
		id := r["id"].(guid)
		x.out.row(now, id[:], x.style126(r["recorded_at"]), x.style126(r["stage_at"]), len(r["message"].(string)))
	}
}

func anyCarried(row) bool { return true }

// delayedAfter returns a function that reports whether a row's message is delayed until after a
// time.
func delayedAfter(at time.Time) func(row) bool {
	return func(r row) bool {
		stageAt, carried := r["stage_at"].(time.Time)
		return carried && stageAt.After(at) && !stageAt.After(r["recorded_at"].(time.Time))
	}
}

// advance makes a delayed row due.
func advance(x *execution, words []string) uint64 {
	text, _ := x.parameters["@p1"].(string)
	id := parseGUID(text)
	return x.changeByKey("UPDATE", "bridge_ledger", words[1], row{"id": id}, func(r row) row {
		if delayedAfter(x.now)(r) {
			r["recorded_at"], r["stage_at"] = x.now, x.now
		}
		return r
	})
}

// carried returns the first @p1 wanted rows in the index on the stage time, which has the rows with
// messages.
func (x *execution) carried(hints string, wanted func(row) bool) []row {
	ledger := x.readable("bridge_ledger")
	how := x.reading(hints)
	rows := slices.DeleteFunc(x.scan(ledger, how), func(r row) bool { return r["stage_at"] == nil || !wanted(r) })
	sortByTime(rows, "stage_at")
	return rows[:min(len(rows), x.top("@p1"))]
}

// readCarried reads a row by its key.
func readCarried(x *execution, words []string) {
	text, _ := x.parameters["@p1"].(string)
	var found []row
	x.findWhere([]guid{parseGUID(text)}, place{"bridge_ledger", "id", words[1]}, func(r row) bool {
		if r["stage_at"] != nil {
			found = append(found, r)
		}
		return false
	})
	x.showCarried(found)
}

func (x *execution) showCarried(rows []row) {
	x.out.describe(column{"id", kindText}, column{"recorded_ms", kindInt}, column{"stage_ms", kindInt}, column{"bytes", kindInt})
	for _, r := range rows {
		x.out.row(r["id"].(guid).String(), int(r["recorded_at"].(time.Time).UnixMilli()), int(r["stage_at"].(time.Time).UnixMilli()), len(r["message"].(string)))
	}
}

func claim(x *execution, words []string) {
	ids := x.asked(words[1])
	times, _ := x.parameters["@p3"].([]byte)
	if len(times) < 8*len(ids) {
		panic(unknown("parameter", "@p3, too short"))
	}
	stageAt := make(map[guid]int64, len(ids))
	for i, id := range ids {
		stageAt[id] = int64(binary.BigEndian.Uint64(times[8*i:]))
	}
	x.changeFree("UPDATE", words[1], words[2], func(r row) (row, bool) {
		at, carried := r["stage_at"].(time.Time)
		return x.moved(r), carried && at.UnixMilli() == stageAt[r["id"].(guid)]
	}, column{"message", kindLong})
}

// moved returns r with its stage time moved on.
func (x *execution) moved(r row) row {
	recorded, from := r["recorded_at"].(time.Time), x.now
	if recorded.After(from) {
		from = recorded
	}
	r["stage_at"] = from.Add(min(max(x.now.Sub(recorded), 10*time.Second), 10*time.Minute))
	return r
}

// executed is a batch within a batch.
var executed = regexp.MustCompile(`^EXEC \(N'((?:[^']|'')*)'\)$`)

// dropColumns drops columns that are in no index: 'ALTER TABLE (Transact-SQL)', DROP COLUMN.
func dropColumns(x *execution, words []string) {
	t := x.changing(unquoted(words[1]))
	for _, name := range unquotedAll(list(words[2])) {
		uses := func(i *index) bool { return slices.Contains(i.columns, name) }
		if slices.ContainsFunc(t.indexes, uses) {
			panic(&sqlError{5074, 16, "An index is dependent on column '" + name + "'."})
		}
		kind, there := t.columns[name]
		if !there {
			panic(&sqlError{4924, 16, "ALTER TABLE DROP COLUMN failed because column '" + name + "' does not exist."})
		}
		before := maps.Clone(t.rows)
		delete(t.columns, name)
		for key, r := range t.rows {
			r = maps.Clone(r)
			delete(r, name)
			t.rows[key] = r
		}
		x.tx.undo = append(x.tx.undo, func() { t.columns[name], t.rows = kind, before })
	}
}

func dropIndex(x *execution, words []string) {
	t := x.changing(unquoted(words[2]))
	i := slices.IndexFunc(t.indexes, func(i *index) bool { return i.name == words[1] })
	if i < 0 || t.indexes[i].unique {
		panic(unknown("index to drop", words[1]))
	}
	before := t.indexes
	t.indexes = slices.Delete(slices.Clone(before), i, i+1)
	x.tx.undo = append(x.tx.undo, func() { t.indexes = before })
}

// addColumns adds nullable columns. A batch cannot refer to a column that it has added: 'SQL Server
// utilities statements - GO' and 'EXECUTE (Transact-SQL)'.
func addColumns(x *execution, words []string) {
	t := x.changing(unquoted(words[1]))
	for _, part := range list(words[2]) {
		d := definition.FindStringSubmatch(part)
		if d == nil || !strings.HasSuffix(part, " NULL") {
			panic(unknown("column", part))
		}
		name := unquoted(d[1])
		if t.columns[name] != "" {
			panic(&sqlError{2705, 16, "Column names in each table must be unique."})
		}
		t.columns[name] = d[2]
		x.added = append(x.added, name)
		x.tx.undo = append(x.tx.undo, func() { delete(t.columns, name) })
	}
}
