package tds

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// hinted panics unless the table has an index that a hint can name: 'Disable Indexes and
// Constraints', and 308 and 315 of 'Database engine events and errors'.
func (x *execution) hinted(t *table, name string) {
	switch i := slices.IndexFunc(t.indexes, func(i *index) bool { return i.name == name }); {
	case i < 0:
		panic(errNoIndex)
	case t.indexes[i].disabled:
		panic(errDisabled)
	}
}

// The statements that do not depend on a table's role in the library.
var plainStatements = []statement{
	form(`SELECT count(*) FROM «(\w+)»`, func(x *execution, words []string) {
		x.number(len(x.plain(words[1])))
	}),
	form(`SELECT count(*) FROM $name WITH (INDEX («(\w+)»))`, func(x *execution, words []string) {
		rows := x.plain(unquoted(words[1]))
		x.hinted(x.db.tables[unquoted(words[1])], words[2])
		x.number(len(rows))
	}),
	form(`SELECT count(*) FROM bridge_ledger«(?: WITH \(([A-Z, ]+)\))?» WHERE id = CAST(@p1 AS uniqueidentifier)`,
		func(x *execution, words []string) {
			x.number(len(x.find([]guid{x.guid("@p1")}, place{"bridge_ledger", "id", words[1]})))
		}),
	form(`SELECT [identity] FROM bridge_identity`, func(x *execution, _ []string) {
		rows := x.plain("bridge_identity")
		x.out.describe(column{"identity", kindGUID})
		for _, r := range rows {
			x.out.row(r["identity"])
		}
	}),
	form(`SELECT id FROM «(\w+)»`, func(x *execution, words []string) {
		rows := x.plain(words[1])
		kind := byte(kindText)
		if x.db.tables[words[1]].columns["id"] == uniqueIdentifier {
			kind = kindGUID
		}
		x.out.describe(column{"id", kind})
		for _, r := range rows {
			x.out.row(r["id"])
		}
	}),
	changes(`INSERT INTO $name ($name) VALUES «((?:\('[^']*'\)(?:, ?)?)+)»`, func(x *execution, words []string) (inserted uint64) {
		t := x.writable("INSERT", unquoted(words[1]))
		column := unquoted(words[2])
		for _, text := range list(words[3]) {
			var value any = strings.Trim(text, "()'")
			if t.columns[column] == uniqueIdentifier {
				value = parseGUID(value.(string))
			}
			inserted += x.insert(t, row{column: value})
		}
		return inserted
	}),
	changes(`INSERT INTO $name ($name) VALUES (@p1)`, func(x *execution, words []string) uint64 {
		t := x.writable("INSERT", unquoted(words[1]))
		text, isText := x.parameters["@p1"].(string)
		if !isText {
			panic(unknown("parameter", "@p1"))
		}
		return x.insert(t, row{unquoted(words[2]): text})
	}),
	form(`SELECT CAST(id AS nvarchar(36)) FROM bridge_ledger`, func(x *execution, _ []string) {
		rows := x.plain("bridge_ledger")
		x.out.describe(column{"", kindText})
		for _, r := range rows {
			x.out.row(fmt.Sprint(r["id"]))
		}
	}),
	changes(`DELETE FROM «(\w+)»`, func(x *execution, words []string) uint64 {
		t := x.writable("DELETE", words[1])
		return x.change(t, func(row) row { return nil })
	}),
	changes(`UPDATE bridge_identity SET [identity] = NEWID()`, func(x *execution, _ []string) uint64 {
		t := x.writable("UPDATE", "bridge_identity")
		return x.change(t, func(r row) row {
			r["identity"] = newID()
			return r
		})
	}),
	changes(`INSERT INTO bridge_identity ([identity]) VALUES (NEWID())`, func(x *execution, _ []string) uint64 {
		t := x.writable("INSERT", "bridge_identity")
		return x.insert(t, row{"one": true, "identity": newID()})
	}),

	// goose's statements
	changes(`INSERT INTO «(bridge_\w+_version)» (version_id, is_applied) VALUES (@p1, @p2)`,
		func(x *execution, words []string) uint64 {
			t := x.writable("INSERT", words[1])
			return x.insert(t, row{"id": t.last + 1, "version_id": x.parameters["@p1"], "is_applied": x.parameters["@p2"], "tstamp": time.Now()})
		}),
	changes(`INSERT INTO «(bridge_\w+_version)» (version_id, is_applied) SELECT «(\d+)», 1 WHERE NOT EXISTS (SELECT * FROM «(bridge_\w+_version)» WHERE version_id = «(\d+)»)`,
		func(x *execution, words []string) uint64 {
			if x.hasVersion(words[3], words[4]) {
				return 0
			}
			t := x.writable("INSERT", words[1])
			version, _ := strconv.ParseInt(words[2], 10, 64)
			return x.insert(t, row{"id": t.last + 1, "version_id": version, "is_applied": true, "tstamp": time.Now()})
		}),
	form(`SELECT TOP 1 tstamp, is_applied FROM «(bridge_\w+_version)» WHERE version_id=@p1 ORDER BY tstamp DESC`,
		func(x *execution, words []string) {
			rows := x.plain(words[1])
			x.out.describe(column{"tstamp", kindDateTime}, column{"is_applied", kindBit})
			for _, r := range slices.Backward(rows) {
				if r["version_id"] == x.parameters["@p1"] {
					x.out.row(r["tstamp"], r["is_applied"])
					break
				}
			}
		}),
	form(`SELECT version_id, is_applied FROM «(bridge_\w+_version)» ORDER BY id DESC`,
		func(x *execution, words []string) {
			rows := x.plain(words[1])
			x.out.describe(column{"version_id", kindInt}, column{"is_applied", kindBit})
			slices.SortFunc(rows, func(a, b row) int { return int(b["id"].(int64) - a["id"].(int64)) })
			for _, r := range rows {
				x.out.row(r["version_id"], r["is_applied"])
			}
		}),
	form(`SELECT MAX(version_id) FROM «(bridge_\w+_version)»`, func(x *execution, words []string) {
		version := x.version(words[1])
		x.out.describe(column{"", kindInt})
		x.out.row(version)
	}),
	changes(`DELETE FROM bridge_ledger_version WHERE version_id > «(\d+)»`,
		func(x *execution, words []string) uint64 {
			t := x.writable("DELETE", "bridge_ledger_version")
			last, _ := strconv.ParseInt(words[1], 10, 64)
			return x.change(t, func(r row) row {
				if r["version_id"].(int64) > last {
					return nil
				}
				return r
			})
		}),
	changes(`INSERT INTO «(bridge_\w+_version)» (version_id, is_applied) SELECT version_id + «(\d+)», is_applied FROM «bridge_\w+_version» WHERE version_id = (SELECT MAX(version_id) FROM «bridge_\w+_version»)`,
		func(x *execution, words []string) uint64 {
			t := x.writable("INSERT", words[1])
			version := x.version(words[1])
			more, _ := strconv.ParseInt(words[2], 10, 64)
			return x.insert(t, row{"id": t.last + 1, "version_id": version.(int64) + more, "is_applied": true, "tstamp": time.Now()})
		}),
}

// hasVersion reports whether a table of versions has a version.
func (x *execution) hasVersion(name, version string) bool {
	return slices.ContainsFunc(x.plain(name), func(r row) bool { return fmt.Sprint(r["version_id"]) == version })
}

// version returns the latest version, or nil.
func (x *execution) version(name string) any {
	var latest any
	for _, r := range x.plain(name) {
		if v := r["version_id"].(int64); latest == nil || v > latest.(int64) {
			latest = v
		}
	}
	return latest
}

func newID() (id guid) {
	_, _ = rand.Read(id[:])
	return id
}
