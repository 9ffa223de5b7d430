package tds

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	nowMS     = `DATEDIFF_BIG(millisecond, '19700101', SYSUTCDATETIME())`
	pendingAs = `message_key, state, run, attempts, since_ms, error, message`
)

var pendingColumns = []column{{"message_key", kindBinary}, {"state", kindText}, {"run", kindText}, {"attempts", kindInt},
	{"since_ms", kindInt}, {"error", kindText}, {"message", kindLong}}

// The statements of bridge/sqlserver on the inbox and its pending messages.
var inboxStatements = []statement{
	form(`SELECT (SELECT max(version_id) FROM bridge_inbox_version) AS version, `+productColumns,
		func(x *execution, _ []string) {
			version := x.version("bridge_inbox_version")
			product, edition, babelfish := x.product()
			x.out.describe(column{"version", kindInt}, column{"product", kindText}, column{"edition", kindInt}, column{"babelfish", kindInt})
			x.out.row(version, product, edition, babelfish)
		}),
	changes(`INSERT INTO bridge_inbox (consumer, [key]) SELECT @p1, k.k FROM (VALUES «((?:\(\d+, @p\d+\)(?:, )?)+)») AS k (n, k) WHERE k.n <= @p2`,
		func(x *execution, words []string) (claimed uint64) {
			inbox := x.writable("INSERT", "bridge_inbox")
			for _, place := range list(words[1])[:x.parameters["@p2"].(int64)] {
				_, parameter, _ := strings.Cut(strings.Trim(place, "()"), ", ")
				claimed += x.insert(inbox, row{"consumer": x.bytes("@p1"), "key": x.bytes(parameter), "claimed_ms": time.Now().UnixMilli()})
			}
			return claimed
		}),
	changes(`DELETE t FROM bridge_inbox t WITH («([^=]+?)») WHERE consumer = @p1 AND [key] = @p2`,
		func(x *execution, words []string) uint64 {
			return x.changeByKey("DELETE", "bridge_inbox", words[1], row{"consumer": x.bytes("@p1"), "key": x.bytes("@p2")},
				func(row) row { return nil })
		}),
	form(`SELECT [key], `+nowMS+` - DATEDIFF_BIG(millisecond, '19700101', claimed_at) AS age_ms FROM bridge_inbox WITH («([^=]+?)») WHERE consumer = @p1 AND [key] > @p2 ORDER BY [key] OFFSET 0 ROWS FETCH NEXT @p3 ROWS ONLY`,
		func(x *execution, words []string) {
			rows := x.rowsWhere("bridge_inbox", words[1], row{"consumer": x.bytes("@p1")})
			x.out.describe(column{"key", kindBinary}, column{"age_ms", kindInt})
			rows = pageAfter(rows, "key", x.bytes("@p2"), x.parameters["@p3"].(int64))
			for _, r := range rows {
				x.out.row([]byte(r["key"].(string)), time.Now().UnixMilli()-r["claimed_ms"].(int64))
			}
		}),
	changes(`DELETE i FROM (VALUES «((?:\(@p\d+\)(?:, )?)+)») AS k (k) INNER LOOP JOIN bridge_inbox i WITH («([^=]+?)») ON i.[key] = k.k WHERE i.consumer = «(@p\d+)» AND DATEDIFF_BIG(millisecond, '19700101', claimed_at) < `+nowMS+` - «(@p\d+)»`,
		func(x *execution, words []string) (forgotten uint64) {
			before := time.Now().UnixMilli() - x.parameters[words[4]].(int64)
			for _, parameter := range list(words[1]) {
				forgotten += x.changeByKey("DELETE", "bridge_inbox", words[2],
					row{"consumer": x.bytes(words[3]), "key": x.bytes(strings.Trim(parameter, "()"))},
					func(r row) row {
						if r["claimed_ms"].(int64) < before {
							return nil
						}
						return r
					})
			}
			return forgotten
		}),

	changes(`INSERT INTO bridge_inbox_pending (consumer, message_key, state, run, attempts, since_ms, due_ms, error, message) VALUES (@p1, @p2, @p3, @p4, @p5, `+nowMS+`, `+nowMS+` + @p6, @p7, @p8)`,
		func(x *execution, _ []string) uint64 {
			t := x.writable("INSERT", "bridge_inbox_pending")
			now := time.Now().UnixMilli()
			return x.insert(t, row{"consumer": x.bytes("@p1"), "message_key": x.bytes("@p2"), "state": x.parameters["@p3"],
				"run": x.parameters["@p4"], "attempts": x.parameters["@p5"], "since_ms": now,
				"due_ms": now + x.parameters["@p6"].(int64), "error": x.parameters["@p7"], "message": x.message("@p8")})
		}),
	form(`SELECT c.claimed, p.state, p.run, p.attempts, p.since_ms, p.error, p.message FROM (SELECT count(*) AS claimed FROM bridge_inbox WITH («([^=]+?)») WHERE consumer = @p1 AND [key] = @p2) c «(LEFT JOIN|LEFT OUTER LOOP JOIN)» bridge_inbox_pending p «(?:WITH \(([^=]+?)\) )?»ON p.consumer = @p3 AND p.message_key = @p4`,
		lookUpPending),
	changes(`UPDATE t SET state = @p1, run = @p2, attempts = @p3, due_ms = `+nowMS+` + @p4, error = @p5, message = COALESCE(@p6, message) FROM bridge_inbox_pending t WITH («([^=]+?)») WHERE consumer = @p7 AND message_key = @p8 AND run = @p9`,
		func(x *execution, words []string) uint64 {
			return x.changePending("UPDATE", words[1], "@p7", "@p8", "@p9", func(r row) row {
				r["state"], r["run"], r["attempts"] = x.parameters["@p1"], x.parameters["@p2"], x.parameters["@p3"]
				r["due_ms"] = time.Now().UnixMilli() + x.parameters["@p4"].(int64)
				r["error"] = x.parameters["@p5"]
				if message := x.message("@p6"); message != nil {
					r["message"] = message
				}
				return r
			})
		}),
	changes(`UPDATE t SET message = @p1 FROM bridge_inbox_pending t WITH («([^=]+?)») WHERE consumer = @p2 AND message_key = @p3 AND run = @p4 AND message IS NULL`,
		func(x *execution, words []string) uint64 {
			return x.changePending("UPDATE", words[1], "@p2", "@p3", "@p4", func(r row) row {
				if r["message"] != nil {
					return nil
				}
				r["message"] = x.message("@p1")
				return r
			})
		}),
	changes(`DELETE t FROM bridge_inbox_pending t WITH («([^=]+?)») WHERE consumer = @p1 AND message_key = @p2 AND run = @p3«( AND message IS NULL)?»`,
		func(x *execution, words []string) uint64 {
			bare := words[2] != ""
			return x.changeByKey("DELETE", "bridge_inbox_pending", words[1], row{"consumer": x.bytes("@p1"), "message_key": x.bytes("@p2")},
				func(r row) row {
					if r["run"] != x.parameters["@p3"] || bare && r["message"] != nil {
						return r
					}
					return nil
				})
		}),
	form(`SELECT TOP (100) message_key, due_ms FROM bridge_inbox_pending WITH («([^=]+?)») WHERE consumer = @p1 AND state = CAST(@p2 AS varchar(16)) AND due_ms >= @p3 AND due_ms <= `+nowMS+` AND (due_ms > @p4 OR message_key > @p5)«( AND message IS NOT NULL)?» ORDER BY due_ms, message_key`,
		dueKeys),
	form(`SELECT `+pendingAs+` FROM bridge_inbox_pending WITH («([^=]+?)») WHERE consumer = @p1 AND message_key = @p2 AND state = CAST(@p3 AS varchar(16)) AND due_ms <= `+nowMS+` AND message IS NOT NULL`,
		takePending),
	changes(`UPDATE t SET state = 'doubtful', due_ms = `+nowMS+`, error = «('[^']*')» FROM bridge_inbox_pending t WITH («([^=]+?)») WHERE consumer = @p1 AND message_key = @p2 AND state = 'started' AND due_ms < `+nowMS,
		doubtOverdue),
	form(`SELECT message_key, state, run, attempts, since_ms, error, CASE WHEN message IS NULL THEN 0 ELSE 1 END AS has_message FROM bridge_inbox_pending WITH («([^=]+?)») WHERE consumer = @p1 AND state = CAST(@p2 AS varchar(16)) AND message_key > @p3 ORDER BY message_key OFFSET 0 ROWS FETCH NEXT @p4 ROWS ONLY`,
		func(x *execution, words []string) {
			rows := x.rowsWhere("bridge_inbox_pending", words[1], row{"consumer": x.bytes("@p1")})
			rows = slices.DeleteFunc(rows, func(r row) bool { return r["state"] != x.parameters["@p2"] })
			rows = pageAfter(rows, "message_key", x.bytes("@p3"), x.parameters["@p4"].(int64))
			last := len(pendingColumns) - 1
			x.out.describe(append(pendingColumns[:last:last], column{"has_message", kindInt})...)
			for _, r := range rows {
				x.out.row([]byte(r["message_key"].(string)), r["state"], r["run"], r["attempts"], r["since_ms"], r["error"], count(r["message"] != nil))
			}
		}),
	form(`SELECT state, count(*) FROM bridge_inbox_pending WITH («([^=]+?)») WHERE consumer = @p1 GROUP BY state`,
		func(x *execution, words []string) {
			counts := make(map[string]int)
			for _, r := range x.rowsWhere("bridge_inbox_pending", words[1], row{"consumer": x.bytes("@p1")}) {
				counts[r["state"].(string)]++
			}
			x.out.describe(column{"state", kindText}, column{"", kindInt})
			for state, n := range counts {
				x.out.row(state, n)
			}
		}),
}

// message returns a varbinary(max) parameter as a string, or nil.
func (x *execution) message(parameter string) any {
	if b, ok := x.parameters[parameter].([]byte); ok {
		return string(b)
	}
	return nil
}

func (x *execution) pendingRow(r row) {
	x.out.row([]byte(r["message_key"].(string)), r["state"], r["run"], r["attempts"], r["since_ms"], r["error"], bytesOrNil(r["message"]))
}

func bytesOrNil(message any) any {
	if message == nil {
		return nil
	}
	return []byte(message.(string))
}

// pageAfter sorts rows by a column, and returns the first ones after a value.
func pageAfter(rows []row, column, after string, limit int64) []row {
	rows = slices.DeleteFunc(rows, func(r row) bool { return r[column].(string) <= after })
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a[column].(string), b[column].(string)) })
	return rows[:min(int64(len(rows)), limit)]
}

// changeByKey locks the row of a key, if it exists, and replaces it by the result of change; nil
// deletes it. It does not count a row that change leaves equal.
func (x *execution) changeByKey(right, name, hints string, values row, change func(row) row) uint64 {
	t := x.writable(right, name)
	x.reach(t, hints, waiting)
	key := t.keyOf(values)
	if x.absent(t, key) || x.stopped() {
		return 0
	}
	x.lock(resource{t.name, key})
	r := t.rows[key]
	if r == nil {
		return 0
	}
	after := change(maps.Clone(r))
	if after != nil && maps.Equal(r, after) {
		return 0
	}
	if moves := after == nil || after["state"] != r["state"] || after["due_ms"] != r["due_ms"]; moves && name == pendingTable {
		x.lock(dueEntry(t, r))
	}
	x.put(t, key, after)
	return 1
}

const pendingTable = "bridge_inbox_pending"

// dueEntry is the entry of a pending message in the index of due times. A change of a column of the
// index locks the row and then the entry. A search by the index locks the entry and then the row:
// 'Deadlocks guide'.
func dueEntry(t *table, r row) resource {
	return resource{t.name + ".bridge_inbox_pending_due", t.keyOf(r)}
}

// changePending changes a row if it has the wanted run and change does not return nil.
func (x *execution) changePending(right, hints, consumer, key, run string, change func(row) row) (changed uint64) {
	x.changeByKey(right, "bridge_inbox_pending", hints,
		row{"consumer": x.bytes(consumer), "message_key": x.bytes(key)},
		func(r row) row {
			if r["run"] != x.parameters[run] {
				return r
			}
			before := maps.Clone(r)
			after := change(r)
			if after == nil {
				return before
			}
			changed = 1 // even if the row is unchanged
			return after
		})
	return changed
}

// reach reads a whole table, and so waits for rows that others have locked, unless the hints
// request a seek. Without that hint the optimizer may read the whole table ('Table hints',
// FORCESEEK); here it always does. A server that ignores hints waits only for the rows of the keys.
func (x *execution) reach(t *table, hints string, how reading) {
	if strings.Contains(hints, "FORCESEEK") || x.server.options.IgnoreHints {
		return
	}
	x.scan(t, how)
}

// lookUpPending locks the claim, if it exists, so that no other session removes it before the rest
// is read. Here the lock is exclusive, since there are no shared ones. A row that is read by
// versions is as of the start of the statement, even after a wait: 'Transaction locking and row
// versioning guide'.
func lookUpPending(x *execution, words []string) {
	inbox := x.readable("bridge_inbox")
	pending := x.readable("bridge_inbox_pending")
	how := x.reading(words[3])
	x.reach(inbox, words[1], waiting)
	x.reach(pending, words[3], how)
	claim := inbox.keyOf(row{"consumer": x.bytes("@p1"), "key": x.bytes("@p2")})
	beside := pending.keyOf(row{"consumer": x.bytes("@p3"), "message_key": x.bytes("@p4")})
	p := x.read(pending, beside, versioned)
	if !x.server.options.IgnoreHints && (inbox.rows[claim] != nil || x.db.locks[resource{inbox.name, claim}] != nil) {
		x.lock(resource{inbox.name, claim})
	}
	claimed := x.read(inbox, claim, how)
	if how != versioned {
		p = x.read(pending, beside, how)
	}
	x.out.describe(append([]column{{"claimed", kindInt}}, pendingColumns[1:]...)...)
	if p == nil {
		x.out.row(count(claimed != nil), nil, nil, nil, nil, nil, nil)
	} else {
		x.out.row(count(claimed != nil), p["state"], p["run"], p["attempts"], p["since_ms"], p["error"], bytesOrNil(p["message"]))
	}
}

func dueKeys(x *execution, words []string) {
	rows := x.rowsWhere(pendingTable, words[1], row{"consumer": x.bytes("@p1")})
	now, bare := time.Now().UnixMilli(), words[2] == ""
	from, _ := x.parameters["@p3"].(int64)
	after, _ := x.parameters["@p4"].(int64)
	rows = slices.DeleteFunc(rows, func(r row) bool {
		due := r["due_ms"].(int64)
		return r["state"] != x.parameters["@p2"] || due < from || due > now || !bare && r["message"] == nil ||
			due <= after && r["message_key"].(string) <= x.bytes("@p5")
	})
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a["due_ms"].(int64), b["due_ms"].(int64)), cmp.Compare(a["message_key"].(string), b["message_key"].(string)))
	})
	rows = rows[:min(len(rows), 100)]
	x.out.describe(column{"message_key", kindBinary}, column{"due_ms", kindInt})
	for _, r := range rows {
		x.out.row([]byte(r["message_key"].(string)), r["due_ms"])
	}
}

// byDue locks a row's entry in the index of due times, unless a hint makes the statement seek in
// the key: the optimizer may find the row by either.
func (x *execution) byDue(t *table, hints string, r row) {
	if r == nil || strings.Contains(hints, "INDEX (bridge_inbox_pending_key)") || x.server.options.IgnoreHints {
		return
	}
	x.awaitForUpdate(dueEntry(t, r))
}

func takePending(x *execution, words []string) {
	t := x.readable(pendingTable)
	how := x.reading(words[1])
	x.reach(t, words[1], how)
	key := t.keyOf(row{"consumer": x.bytes("@p1"), "message_key": x.bytes("@p2")})
	x.byDue(t, words[1], t.rows[key])
	if how == waiting && strings.Contains(words[1], "UPDLOCK") && !x.absent(t, key) {
		x.awaitForUpdate(resource{t.name, key})
	}
	r := x.read(t, key, how)
	x.out.describe(pendingColumns...)
	if r == nil || r["state"] != x.parameters["@p3"] || r["due_ms"].(int64) > time.Now().UnixMilli() || r["message"] == nil {
		return
	}
	x.pendingRow(r)
}

func doubtOverdue(x *execution, words []string) uint64 {
	t := x.writable("UPDATE", pendingTable)
	values, now := row{"consumer": x.bytes("@p1"), "message_key": x.bytes("@p2")}, time.Now().UnixMilli()
	x.byDue(t, words[2], t.rows[t.keyOf(values)])
	return x.changeByKey("UPDATE", t.name, words[2], values, func(r row) row {
		if r["state"] == "started" && r["due_ms"].(int64) < now {
			r["state"], r["due_ms"], r["error"] = "doubtful", now, strings.Trim(words[1], "'")
		}
		return r
	})
}
