package tds

import (
	"slices"
)

// The statements of bridge/sqlserver.
var ledgerStatements = []statement{
	form(`INSERT INTO bridge_ledger (id) SELECT asked.id FROM bridge_identity i CROSS JOIN $asked WHERE i.[identity] = CAST(@p3 AS uniqueidentifier)`,
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
	form(`SELECT CAST(l.id AS binary(16)) AS id FROM bridge_identity i LEFT JOIN ($asked INNER LOOP JOIN bridge_ledger l WITH («([A-Z, ]+)») ON l.id = asked.id) ON 1 = 1 WHERE i.[identity] = CAST(@p3 AS uniqueidentifier)`,
		func(x *execution, words []string) (uint64, error) {
			ids, err := x.asked(words[1])
			if err != nil {
				return 0, err
			}
			return x.lookUp(ids, words[2])
		}),
	form(`SELECT (SELECT count(*) FROM bridge_identity WHERE [identity] = CAST(@p2 AS uniqueidentifier)) AS own, (SELECT count(*) FROM bridge_ledger WITH («([A-Z, ]+)») WHERE id = CAST(@p1 AS uniqueidentifier)) AS found, CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(60)) AS updateability`,
		settle),
	form(`DELETE l FROM $asked INNER LOOP JOIN bridge_ledger l WITH (ROWLOCK) ON l.id = asked.id`,
		func(x *execution, words []string) (uint64, error) {
			ids, err := x.asked(words[1])
			if err != nil {
				return 0, err
			}
			return x.forget(ids)
		}),
	form(`INSERT INTO bridge_inbox (consumer, [key]) VALUES (@p1, @p2)`,
		func(x *execution, _ []string) (uint64, error) {
			inbox, err := x.writable("INSERT", "bridge_inbox")
			if err != nil {
				return 0, err
			}
			consumer, _ := x.parameters["@p1"].([]byte)
			key, _ := x.parameters["@p2"].([]byte)
			return 1, x.insert(inbox, row{"consumer": string(consumer), "key": string(key)})
		}),
}

// own tells whether the parameter is the ledger's identity.
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

func (x *execution) lookUp(ids []guid, hints string) (uint64, error) {
	own, err := x.own("@p3")
	if err != nil {
		return 0, err
	}
	var found []guid
	for _, id := range ids {
		there, err := x.ledgerRow(id, hints)
		if err != nil {
			return 0, err
		}
		if there {
			found = append(found, id)
		}
	}
	x.out.describe(column{"id", kindBinary})
	switch {
	case !own:
		return 0, nil
	case len(found) == 0:
		x.out.row(nil)
		return 1, nil
	}
	for _, id := range found {
		x.out.row(id[:])
	}
	return uint64(len(found)), nil
}

func settle(x *execution, words []string) (uint64, error) {
	own, err := x.own("@p2")
	if err != nil {
		return 0, err
	}
	id, err := x.guid("@p1")
	if err != nil {
		return 0, err
	}
	found, err := x.ledgerRow(id, words[1])
	if err != nil {
		return 0, err
	}
	x.out.describe(column{"own", kindInt}, column{"found", kindInt}, column{"updateability", kindText})
	x.out.row(count(own), count(found), x.updateability())
	return 1, nil
}

// ledgerRow tells whether the ledger has a row of id.
func (x *execution) ledgerRow(id guid, hints string) (bool, error) {
	ledger, err := x.readable("bridge_ledger")
	if err != nil {
		return false, err
	}
	how, err := x.reading(hints)
	if err != nil {
		return false, err
	}
	r, err := x.read(ledger, ledger.keyOf(row{"id": id}), how)
	return r != nil, err
}

// count is count(*) of something that is there once or not.
func count(there bool) int {
	if there {
		return 1
	}
	return 0
}

func (x *execution) forget(ids []guid) (uint64, error) {
	if _, err := x.readable("bridge_ledger"); err != nil {
		return 0, err
	}
	ledger, err := x.writable("DELETE", "bridge_ledger")
	if err != nil {
		return 0, err
	}
	var gone uint64
	for _, id := range ids {
		key := ledger.keyOf(row{"id": id})
		if ledger.rows[key] == nil {
			continue // nothing to lock
		}
		if err := x.lock(resource{ledger.name, key}); err != nil {
			return 0, err
		}
		if ledger.rows[key] != nil {
			x.put(ledger, key, nil)
			gone++
		}
	}
	return gone, nil
}

func (x *execution) updateability() string {
	if x.onSecondary() {
		return "READ_ONLY"
	}
	return "READ_WRITE"
}
