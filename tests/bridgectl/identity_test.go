package bridgectl_test

import (
	"testing"

	"github.com/google/uuid"
)

// carriedRow inserts one row with a message, as a sender would, and one row without.
var carriedRow = map[string]string{
	"postgres": `INSERT INTO bridge_ledger (id, message, stage_at) VALUES (gen_random_uuid(), '\x01', now()), (gen_random_uuid(), NULL, NULL)`,
	"sqlite":   `INSERT INTO bridge_ledger (id, message, stage_at) VALUES ('a', x'01', 1), ('b', NULL, NULL)`,
	"mysql":    `INSERT INTO bridge_ledger (id, message, stage_at) VALUES (UNHEX(REPLACE(UUID(), '-', '')), 'm', UTC_TIMESTAMP()), (UNHEX(REPLACE(UUID(), '-', '')), NULL, NULL)`,
}

// A copy of a database must not send the original's messages a second time.
func TestACopyGetsAnIdentityOfItsOwnAndLosesTheMessagesOfTheOriginal(t *testing.T) {
	t.Parallel()
	for kind, open := range databases {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			address, script := open(t)
			tool := withEnv(t, "BRIDGE_DATABASE_URL="+address, "BRIDGE_INSECURE=true")
			if r := tool.run("identity", "new", "--yes"); r.Code != 1 {
				t.Errorf("without tables the exit code is %d, must be 1: %s", r.Code, r.Stderr)
			}
			tool.must("migrate", "up")
			var before, after []schema
			tool.json(&before, "migrate", "status")
			deleted := int64(0)
			if rows := carriedRow[kind]; rows != "" { // the stand-in for SQL Server does not support such a statement
				must(t, script(rows))
				deleted = 1
			}
			if r := tool.run("identity", "new"); r.Code != 2 {
				t.Errorf("without --yes the exit code is %d, must be 2", r.Code)
			}
			var made struct {
				Identity uuid.UUID
				Deleted  int64
			}
			tool.json(&made, "identity", "new", "--yes")
			tool.json(&after, "migrate", "status")
			if made.Deleted != deleted {
				t.Errorf("%d messages are deleted, must be %d", made.Deleted, deleted)
			}
			if after[0].Identity != made.Identity.String() || after[0].Identity == before[0].Identity {
				t.Errorf("the identity is %s, was %s, and the command says %s", after[0].Identity, before[0].Identity, made.Identity)
			}
		})
	}
}
