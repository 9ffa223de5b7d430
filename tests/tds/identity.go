package tds

// The statements of migrate.NewIdentity.
var identityStatements = []statement{
	changes(`DELETE FROM bridge_ledger WHERE stage_at IS NOT NULL`, func(x *execution, _ []string) uint64 {
		t := x.writable("DELETE", "bridge_ledger")
		return x.change(t, func(r row) row {
			if r["stage_at"] == nil {
				return r
			}
			return nil
		})
	}),
	changes(`UPDATE bridge_identity SET [identity] = '«([0-9a-f-]{36})»'`, func(x *execution, words []string) uint64 {
		t := x.writable("UPDATE", "bridge_identity")
		identity := parseGUID(words[1])
		return x.change(t, func(r row) row {
			r["identity"] = identity
			return r
		})
	}),
}
