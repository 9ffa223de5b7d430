package tds

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// The statements of bridge/sqlserver on marks and kept messages.
var entityStatements = []statement{
	form(`UPDATE m SET mark = m.mark OUTPUT inserted.mark FROM bridge_mark m WITH («([^=]+?)») WHERE m.consumer = @p1 AND m.[name] = @p2`,
		func(x *execution, words []string) {
			x.out.describe(column{"mark", kindBinary})
			x.changeMark(words[1], func(r row) {
				x.out.row([]byte(r["mark"].(string)))
			})
		}),
	changes(`INSERT INTO bridge_mark (consumer, [name], mark) VALUES (@p1, @p2, 0x)`,
		func(x *execution, _ []string) uint64 {
			t := x.writable("INSERT", "bridge_mark")
			return x.insert(t, row{"consumer": x.bytes("@p1"), "name": x.bytes("@p2"), "mark": ""})
		}),
	changes(`UPDATE m SET mark = @p3, changed_at = sysutcdatetime() FROM bridge_mark m WITH («([^=]+?)») WHERE m.consumer = @p1 AND m.[name] = @p2`,
		func(x *execution, words []string) uint64 {
			return x.changeMark(words[1], func(r row) { r["mark"] = x.bytes("@p3") })
		}),

	changes(`INSERT INTO bridge_kept (consumer, entity, [version], [message]) VALUES (@p1, @p2, @p3, @p4)`,
		func(x *execution, _ []string) uint64 {
			t := x.writable("INSERT", "bridge_kept")
			return x.insert(t, row{"consumer": x.bytes("@p1"), "entity": x.bytes("@p2"), "version": x.parameters["@p3"],
				"message": x.bytes("@p4"), "kept_at": time.Now()})
		}),
	form(`SELECT count(*) FROM bridge_kept WITH («([^=]+?)») WHERE consumer = @p1 AND entity = @p2`,
		func(x *execution, words []string) {
			x.number(len(x.kept(words[1])))
		}),
	form(`SELECT TOP (1) [version], [message] FROM bridge_kept WITH («([^=]+?)») WHERE consumer = @p1 AND entity = @p2 ORDER BY [version]`,
		func(x *execution, words []string) {
			rows := x.kept(words[1])
			x.out.describe(column{"version", kindInt}, column{"message", kindLong})
			if len(rows) == 0 {
				return
			}
			first := slices.MinFunc(rows, func(a, b row) int { return cmp.Compare(a["version"].(int64), b["version"].(int64)) })
			x.out.row(first["version"], []byte(first["message"].(string)))
		}),
	changes(`DELETE k FROM bridge_kept k WITH («([^=]+?)») WHERE consumer = @p1 AND entity = @p2 AND [version] = @p3`,
		func(x *execution, words []string) uint64 {
			return x.changeByKey("DELETE", "bridge_kept", words[1], row{"consumer": x.bytes("@p1"), "entity": x.bytes("@p2"), "version": x.parameters["@p3"]},
				func(row) row { return nil })
		}),
	form(`SELECT TOP (@p2) k.entity, m.mark, k.lowest, k.kept, k.age FROM (SELECT consumer, entity, min([version]) AS lowest, count(*) AS kept, DATEDIFF_BIG(second, min(kept_at), sysutcdatetime()) AS age FROM bridge_kept WITH («([^=]+?)») WHERE consumer = @p1 GROUP BY consumer, entity) k JOIN bridge_mark m WITH («([^=]+?)») ON m.consumer = k.consumer AND m.[name] = k.entity ORDER BY k.age DESC, k.entity`,
		keptEntities),

	// bridgectl's queries, which have no hints.
	form(`SELECT MIN(consumer) FROM «(\w+)» WHERE consumer > @p1`,
		func(x *execution, words []string) {
			var least any
			for _, r := range x.rowsWhere(words[1], "", row{}) {
				consumer := r["consumer"].(string)
				if consumer > x.bytes("@p1") && (least == nil || consumer < string(least.([]byte))) {
					least = []byte(consumer)
				}
			}
			x.out.describe(column{"", kindBinary})
			x.out.row(least)
		}),
	form(`SELECT name, mark FROM bridge_mark WHERE consumer = @p1 AND name > @p2 ORDER BY name`,
		func(x *execution, _ []string) {
			rows := x.rowsWhere("bridge_mark", "", row{"consumer": x.bytes("@p1")})
			rows = pageAfter(rows, "name", x.bytes("@p2"), int64(len(rows)))
			x.out.describe(column{"name", kindBinary}, column{"mark", kindBinary})
			for _, r := range rows {
				x.out.row([]byte(r["name"].(string)), []byte(r["mark"].(string)))
			}
		}),
}

// bytes returns a varbinary parameter as a string, so that rows can be compared.
func (x *execution) bytes(parameter string) string {
	b, _ := x.parameters[parameter].([]byte)
	return string(b)
}

// changeMark locks the row of the mark in @p1 and @p2, if it exists, and changes it. With
// READ_COMMITTED_SNAPSHOT it skips a row that another transaction is still inserting, as under
// optimized locking. Without READ_COMMITTED_SNAPSHOT it waits for that transaction.
func (x *execution) changeMark(hints string, change func(row)) (changed uint64) {
	t := x.writable("UPDATE", "bridge_mark")
	values := row{"consumer": x.bytes("@p1"), "name": x.bytes("@p2")}
	at := resource{t.name, t.keyOf(values)}
	if l := x.db.locks[at]; l != nil && l.owner != x.tx && l.before == nil && x.db.snapshot {
		return 0
	}
	locked := x.db.locks[at] != nil
	x.changeByKey("UPDATE", t.name, hints, values, func(r row) row {
		change(r)
		changed = 1 // even if the row is unchanged
		return r
	})
	if l := x.db.locks[at]; !locked && l != nil && maps.Equal(l.before, t.rows[at.key]) &&
		x.server.options.OptimizedLocking && !strings.Contains(hints, "UPDLOCK") {
		x.unlock(at)
	}
	return changed
}

// kept returns the kept messages of @p1 and @p2.
func (x *execution) kept(hints string) []row {
	return x.rowsWhere("bridge_kept", hints, row{"consumer": x.bytes("@p1"), "entity": x.bytes("@p2")})
}

// rowsWhere returns the rows that have these values, read as a SELECT does by a key that begins
// with the values' columns.
func (x *execution) rowsWhere(name, hints string, values row) []row {
	t := x.readable(name)
	how := x.reading(hints)
	x.reach(t, hints, how)
	prefix := ""
	for _, c := range t.key[:len(values)] {
		prefix += (&table{columns: t.columns, key: []string{c}}).keyOf(values)
	}
	return x.scanPrefix(t, prefix, how)
}

func keptEntities(x *execution, words []string) {
	type group struct {
		entity string
		lowest int64
		kept   int
		oldest time.Time
	}
	groups := make(map[string]*group)
	for _, r := range x.rowsWhere("bridge_kept", words[1], row{"consumer": x.bytes("@p1")}) {
		entity, version, at := r["entity"].(string), r["version"].(int64), r["kept_at"].(time.Time)
		g := groups[entity]
		if g == nil {
			g = &group{entity: entity, lowest: version, oldest: at}
			groups[entity] = g
		}
		g.kept++
		g.lowest = min(g.lowest, version)
		if at.Before(g.oldest) {
			g.oldest = at
		}
	}
	all := slices.SortedFunc(maps.Values(groups), func(a, b *group) int {
		if order := a.oldest.Compare(b.oldest); order != 0 {
			return order
		}
		return strings.Compare(a.entity, b.entity)
	})
	x.out.describe(column{"entity", kindBinary}, column{"mark", kindBinary}, column{"lowest", kindInt}, column{"kept", kindInt}, column{"age", kindInt})
	limit, _ := x.parameters["@p2"].(int64)
	for _, g := range all[:min(len(all), int(limit))] {
		for _, m := range x.rowsWhere("bridge_mark", words[2], row{"consumer": x.bytes("@p1"), "name": g.entity}) {
			x.out.row([]byte(g.entity), []byte(m["mark"].(string)), g.lowest, g.kept, int64(time.Since(g.oldest)/time.Second))
		}
	}
}
