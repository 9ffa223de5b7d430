package tds

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The statements that do not depend on a table's role in the library.
var plainStatements = []statement{
	form(`SELECT count(*) FROM «(\w+)»`, func(x *execution, words []string) (uint64, error) {
		rows, err := x.plain(words[1])
		if err != nil {
			return 0, err
		}
		return x.number(len(rows)), nil
	}),
	form(`SELECT count(*) FROM bridge_ledger«(?: WITH \(([A-Z, ]+)\))?» WHERE id = CAST(@p1 AS uniqueidentifier)`,
		func(x *execution, words []string) (uint64, error) {
			id, err := x.guid("@p1")
			if err != nil {
				return 0, err
			}
			found, err := x.find([]guid{id}, place{"bridge_ledger", "id", words[1]})
			if err != nil {
				return 0, err
			}
			return x.number(len(found)), nil
		}),
	form(`SELECT [identity] FROM bridge_identity`, func(x *execution, _ []string) (uint64, error) {
		rows, err := x.plain("bridge_identity")
		if err != nil {
			return 0, err
		}
		x.out.describe(column{"identity", kindGUID})
		for _, r := range rows {
			x.out.row(r["identity"])
		}
		return uint64(len(rows)), nil
	}),
	form(`SELECT id FROM «(\w+)»`, func(x *execution, words []string) (uint64, error) {
		rows, err := x.plain(words[1])
		if err != nil {
			return 0, err
		}
		kind := byte(kindText)
		if x.db.tables[words[1]].columns["id"] == uniqueIdentifier {
			kind = kindGUID
		}
		x.out.describe(column{"id", kind})
		for _, r := range rows {
			x.out.row(r["id"])
		}
		return uint64(len(rows)), nil
	}),
	form(`INSERT INTO $name ($name) VALUES «((?:\('[^']*'\)(?:, ?)?)+)»`, func(x *execution, words []string) (uint64, error) {
		t, err := x.writable("INSERT", unquoted(words[1]))
		if err != nil {
			return 0, err
		}
		column := unquoted(words[2])
		values := list(words[3])
		for _, text := range values {
			var value any = strings.Trim(text, "()'")
			if t.columns[column] == uniqueIdentifier {
				if value, err = parseGUID(strings.Trim(text, "()'")); err != nil {
					return 0, err
				}
			}
			if err := x.insert(t, row{column: value}); err != nil {
				return 0, err
			}
		}
		return uint64(len(values)), nil
	}),
	form(`INSERT INTO $name ($name) VALUES (@p1)`, func(x *execution, words []string) (uint64, error) {
		t, err := x.writable("INSERT", unquoted(words[1]))
		if err != nil {
			return 0, err
		}
		text, isText := x.parameters["@p1"].(string)
		if !isText {
			return 0, unknown("parameter", "@p1")
		}
		return 1, x.insert(t, row{unquoted(words[2]): text})
	}),
	form(`SELECT CAST(id AS nvarchar(36)) FROM bridge_ledger`, func(x *execution, _ []string) (uint64, error) {
		rows, err := x.plain("bridge_ledger")
		if err != nil {
			return 0, err
		}
		x.out.describe(column{"", kindText})
		for _, r := range rows {
			x.out.row(fmt.Sprint(r["id"]))
		}
		return uint64(len(rows)), nil
	}),
	form(`DELETE FROM «(\w+)»`, func(x *execution, words []string) (uint64, error) {
		t, err := x.writable("DELETE", words[1])
		if err != nil {
			return 0, err
		}
		return x.change(t, func(row) row { return nil })
	}),
	form(`UPDATE bridge_identity SET [identity] = NEWID()`, func(x *execution, _ []string) (uint64, error) {
		t, err := x.writable("UPDATE", "bridge_identity")
		if err != nil {
			return 0, err
		}
		return x.change(t, func(r row) row {
			r["identity"] = newID()
			return r
		})
	}),
	form(`INSERT INTO bridge_identity ([identity]) VALUES (NEWID())`, func(x *execution, _ []string) (uint64, error) {
		t, err := x.writable("INSERT", "bridge_identity")
		if err != nil {
			return 0, err
		}
		return 1, x.insert(t, row{"one": true, "identity": newID()})
	}),

	// goose's statements
	form(`INSERT INTO «(bridge_\w+_version)» (version_id, is_applied) VALUES (@p1, @p2)`,
		func(x *execution, words []string) (uint64, error) {
			t, err := x.writable("INSERT", words[1])
			if err != nil {
				return 0, err
			}
			return 1, x.insert(t, row{"id": t.last + 1, "version_id": x.parameters["@p1"], "is_applied": x.parameters["@p2"], "tstamp": time.Now()})
		}),
	form(`INSERT INTO «(bridge_\w+_version)» (version_id, is_applied) SELECT «(\d+)», 1 WHERE NOT EXISTS (SELECT * FROM «(bridge_\w+_version)» WHERE version_id = «(\d+)»)`,
		func(x *execution, words []string) (uint64, error) {
			noted, err := x.hasVersion(words[3], words[4])
			if err != nil || noted {
				return 0, err
			}
			t, err := x.writable("INSERT", words[1])
			if err != nil {
				return 0, err
			}
			version, err := strconv.ParseInt(words[2], 10, 64)
			if err != nil {
				return 0, err
			}
			return 1, x.insert(t, row{"id": t.last + 1, "version_id": version, "is_applied": true, "tstamp": time.Now()})
		}),
	form(`SELECT TOP 1 tstamp, is_applied FROM «(bridge_\w+_version)» WHERE version_id=@p1 ORDER BY tstamp DESC`,
		func(x *execution, words []string) (uint64, error) {
			rows, err := x.plain(words[1])
			if err != nil {
				return 0, err
			}
			x.out.describe(column{"tstamp", kindDateTime}, column{"is_applied", kindBit})
			for _, r := range slices.Backward(rows) {
				if r["version_id"] == x.parameters["@p1"] {
					x.out.row(r["tstamp"], r["is_applied"])
					break
				}
			}
			return 1, nil
		}),
	form(`SELECT version_id, is_applied FROM «(bridge_\w+_version)» ORDER BY id DESC`,
		func(x *execution, words []string) (uint64, error) {
			rows, err := x.plain(words[1])
			if err != nil {
				return 0, err
			}
			x.out.describe(column{"version_id", kindInt}, column{"is_applied", kindBit})
			slices.SortFunc(rows, func(a, b row) int { return int(b["id"].(int64) - a["id"].(int64)) })
			for _, r := range rows {
				x.out.row(r["version_id"], r["is_applied"])
			}
			return uint64(len(rows)), nil
		}),
	form(`SELECT MAX(version_id) FROM «(bridge_\w+_version)»`, func(x *execution, words []string) (uint64, error) {
		version, err := x.version(words[1])
		if err != nil {
			return 0, err
		}
		x.out.describe(column{"", kindInt})
		x.out.row(version)
		return 1, nil
	}),
	form(`DELETE FROM bridge_ledger_version WHERE version_id > «(\d+)»`,
		func(x *execution, words []string) (uint64, error) {
			t, err := x.writable("DELETE", "bridge_ledger_version")
			if err != nil {
				return 0, err
			}
			last, _ := strconv.ParseInt(words[1], 10, 64)
			return x.change(t, func(r row) row {
				if r["version_id"].(int64) > last {
					return nil
				}
				return r
			})
		}),
	form(`INSERT INTO «(bridge_\w+_version)» (version_id, is_applied) SELECT version_id + «(\d+)», is_applied FROM «bridge_\w+_version» WHERE version_id = (SELECT MAX(version_id) FROM «bridge_\w+_version»)`,
		func(x *execution, words []string) (uint64, error) {
			t, err := x.writable("INSERT", words[1])
			if err != nil {
				return 0, err
			}
			version, err := x.version(words[1])
			if err != nil {
				return 0, err
			}
			more, _ := strconv.ParseInt(words[2], 10, 64)
			return 1, x.insert(t, row{"id": t.last + 1, "version_id": version.(int64) + more, "is_applied": true, "tstamp": time.Now()})
		}),
}

// hasVersion reports whether a table of versions has a version.
func (x *execution) hasVersion(name, version string) (bool, error) {
	rows, err := x.plain(name)
	return slices.ContainsFunc(rows, func(r row) bool { return fmt.Sprint(r["version_id"]) == version }), err
}

// version returns the latest version, or nil.
func (x *execution) version(name string) (any, error) {
	rows, err := x.plain(name)
	var latest any
	for _, r := range rows {
		if v := r["version_id"].(int64); latest == nil || v > latest.(int64) {
			latest = v
		}
	}
	return latest, err
}

func newID() (id guid) {
	_, _ = rand.Read(id[:])
	return id
}
