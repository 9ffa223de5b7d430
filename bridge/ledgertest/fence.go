package ledgertest

import "testing"

// testFence: the fence must also hold after a rollback to a savepoint of the caller's.
func testFence(t *testing.T, box *inbox) {
	tx := begin(t, box.db)
	check(t, box.Enter(t.Context(), box.in(tx)), "enter")
	_, err := tx.ExecContext(t.Context(), box.Savepoint)
	check(t, err, "set savepoint")
	fresh, err := box.Claim(t.Context(), box.in(tx), "fence", []string{"key"})
	check(t, err, "claim")
	_, err = tx.ExecContext(t.Context(), box.RollbackTo)
	check(t, err, "roll back to savepoint")
	check(t, box.Leave(t.Context(), box.in(tx)), "leave")
	check(t, tx.Commit(), "commit")

	tx = begin(t, box.db)
	again, err := box.Claim(t.Context(), box.in(tx), "fence", []string{"key"})
	check(t, err, "claim again")
	check(t, tx.Rollback(), "roll back")
	if len(fresh) != 1 || len(again) != 1 {
		t.Errorf("new keys: %q, and after the rollback to the savepoint: %q", fresh, again)
	}
}
