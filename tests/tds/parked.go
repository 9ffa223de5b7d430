package tds

import (
	"fmt"
	"slices"
	"strings"
)

// The statements of bridge/sqlserver on parked messages.
var parkedStatements = []statement{
	form(`INSERT INTO bridge_parked (id, message) SELECT CAST(@p1 AS uniqueidentifier), @p2 FROM bridge_identity WHERE [identity] = CAST(@p3 AS uniqueidentifier)`,
		func(x *execution, _ []string) (uint64, error) {
			id, err := x.guid("@p1")
			if err != nil {
				return 0, err
			}
			parked, err := x.writable("INSERT", "bridge_parked")
			if err != nil {
				return 0, err
			}
			own, err := x.own("@p3")
			if err != nil || !own {
				return 0, err
			}
			return 1, x.insert(parked, row{"id": id, "message": x.bytes("@p2")})
		}),
	form(`SELECT CAST(id AS binary(16)) AS id, DATALENGTH(message) AS size FROM bridge_parked WITH («([A-Z, ]+)») WHERE id = CAST(@p1 AS uniqueidentifier)`, takeOneParked),
	form(`SELECT TOP (@p1) CAST(id AS binary(16)) AS id, DATALENGTH(message) AS size FROM bridge_parked WITH («([A-Z, ]+)») WHERE id > CAST(@p2 AS uniqueidentifier) ORDER BY id`, takeParked),
	form(`SELECT CAST(p.id AS binary(16)) AS id, p.message FROM $asked INNER LOOP JOIN bridge_parked p«(?: WITH \(([A-Z, ]+)\))?» ON p.id = asked.id`, loadParked),
	form(`DELETE p FROM $asked INNER LOOP JOIN bridge_parked p WITH («([A-Z, ]+)») ON p.id = asked.id`,
		func(x *execution, words []string) (uint64, error) {
			return x.deleteRows("bridge_parked", words[1], words[2])
		}),
	form(`SELECT count(*) FROM (SELECT TOP (@p1) id FROM bridge_parked«(?: WITH \(([A-Z, ]+)\))?») AS counted`, countParked),
}

func takeParked(x *execution, words []string) (uint64, error) {
	parked, err := x.readable("bridge_parked")
	if err != nil {
		return 0, err
	}
	how, err := x.reading(words[1])
	if err != nil {
		return 0, err
	}
	rows, err := x.scan(parked, how)
	if err != nil {
		return 0, err
	}
	after, err := x.guid("@p2")
	if err != nil {
		return 0, err
	}
	sortByID(rows)
	rows = slices.DeleteFunc(rows, func(r row) bool { return compare(r["id"].(guid), after) <= 0 })
	x.out.describe(column{"id", kindBinary}, column{"size", kindInt})
	locks := how == skipping && strings.Contains(words[1], "UPDLOCK")
	taken := 0
	for _, r := range rows {
		if taken == x.top("@p1") {
			break
		}
		if locks && !x.lockForUpdate(resource{parked.name, parked.keyOf(r)}) {
			continue
		}
		taken++
		id := r["id"].(guid)
		x.out.row(id[:], len(r["message"].(string)))
	}
	return uint64(taken), nil
}

func takeOneParked(x *execution, words []string) (uint64, error) {
	parked, err := x.readable("bridge_parked")
	if err != nil {
		return 0, err
	}
	how, err := x.reading(words[1])
	if err != nil {
		return 0, err
	}
	if err := x.seek(parked, words[1], how); err != nil {
		return 0, err
	}
	id, err := x.guid("@p1")
	if err != nil {
		return 0, err
	}
	key := parked.keyOf(row{"id": id})
	if how == waiting && !x.absent(parked, key) {
		if err := x.awaitForUpdate(resource{parked.name, key}); err != nil {
			return 0, err
		}
	}
	r, err := x.read(parked, key, how)
	if err != nil {
		return 0, err
	}
	x.out.describe(column{"id", kindBinary}, column{"size", kindInt})
	if r == nil {
		return 0, nil
	}
	x.out.row(id[:], len(r["message"].(string)))
	return 1, nil
}

func loadParked(x *execution, words []string) (uint64, error) {
	ids, err := x.asked(words[1])
	if err != nil {
		return 0, err
	}
	parked, err := x.readable("bridge_parked")
	if err != nil {
		return 0, err
	}
	how, err := x.reading(words[2])
	if err != nil {
		return 0, err
	}
	if err := x.seek(parked, words[2], how); err != nil {
		return 0, err
	}
	x.out.describe(column{"id", kindBinary}, column{"message", kindLong})
	var found uint64
	for _, id := range ids {
		r, err := x.read(parked, parked.keyOf(row{"id": id}), how)
		if err != nil {
			return 0, err
		}
		if r != nil {
			x.out.row(id[:], []byte(r["message"].(string)))
			found++
		}
	}
	return found, nil
}

func countParked(x *execution, words []string) (uint64, error) {
	if strings.Contains(words[1], "FORCESEEK") {
		return 0, errNoPlan // there is nothing to seek
	}
	parked, err := x.readable("bridge_parked")
	if err != nil {
		return 0, err
	}
	how, err := x.reading(words[1])
	if err != nil {
		return 0, err
	}
	rows, err := x.scan(parked, how)
	if err != nil {
		return 0, err
	}
	return x.number(min(len(rows), x.top("@p1"))), nil
}

// deleteRows deletes the rows of the library's IDs, and waits for who has one locked.
func (x *execution) deleteRows(name, places, hints string) (uint64, error) {
	ids, err := x.asked(places)
	if err != nil {
		return 0, err
	}
	if _, err := x.readable(name); err != nil {
		return 0, err
	}
	t, err := x.writable("DELETE", name)
	if err != nil {
		return 0, err
	}
	if err := x.seek(t, hints, waiting); err != nil {
		return 0, err
	}
	var gone uint64
	for _, id := range ids {
		key := t.keyOf(row{"id": id})
		if x.absent(t, key) {
			continue
		}
		if err := x.lock(resource{t.name, key}); err != nil {
			return 0, err
		}
		if t.rows[key] == nil {
			continue
		}
		if t.refuses {
			return 0, &sqlError{50000, 16, fmt.Sprint("refused in ", name)}
		}
		x.put(t, key, nil)
		gone++
	}
	return gone, nil
}
