package tds

// The statements of migrate.NewIdentity.
var identityStatements = []statement{
	form(`DELETE FROM bridge_ledger WHERE stage_at IS NOT NULL`, func(x *execution, _ []string) (uint64, error) {
		t, err := x.writable("DELETE", "bridge_ledger")
		if err != nil {
			return 0, err
		}
		return x.change(t, func(r row) row {
			if r["stage_at"] == nil {
				return r
			}
			return nil
		})
	}),
	form(`UPDATE bridge_identity SET [identity] = '«([0-9a-f-]{36})»'`, func(x *execution, words []string) (uint64, error) {
		t, err := x.writable("UPDATE", "bridge_identity")
		if err != nil {
			return 0, err
		}
		identity, err := parseGUID(words[1])
		if err != nil {
			return 0, err
		}
		return x.change(t, func(r row) row {
			r["identity"] = identity
			return r
		})
	}),
}
