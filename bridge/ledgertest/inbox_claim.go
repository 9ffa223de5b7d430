package ledgertest

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
)

func (i *inbox) claimMany(t *testing.T, tx *sql.Tx, consumer string, keys []string) []string {
	t.Helper()
	fresh, err := i.Claim(t.Context(), i.in(tx), consumer, keys)
	check(t, err, "claim")
	return fresh
}

func expectFresh(t *testing.T, fresh, want []string) {
	t.Helper()
	if !slices.Equal(fresh, want) {
		t.Fatalf("%d keys are new, must be %d: %.500q, must be %.500q", len(fresh), len(want), fresh, want)
	}
}

// someKeys returns n ascending keys: more than one statement of any database takes. Each has
// characters with a meaning in an array's text, a string and a pattern.
func someKeys(n int) []string {
	prefix, keys := newID().String(), make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s %04d {\"%d\\',ä} NULL", prefix, i, i)
	}
	return keys
}

func testClaimMany(t *testing.T, i *inbox) {
	const n = 453
	keys := someKeys(n)
	some := keys[:120] // of several statements, where a database takes a claimed key alone
	var before, rest []string
	for k, key := range keys {
		if k == 0 || k == 7 || k == 8 || k == 450 || k == n-1 {
			before = append(before, key)
		} else {
			rest = append(rest, key)
		}
	}
	tx := begin(t, i.db)
	expectFresh(t, i.claimMany(t, tx, "a", before), before)
	check(t, tx.Commit(), "commit")

	tx = begin(t, i.db)
	expectFresh(t, i.claimMany(t, tx, "a", keys), rest)
	expectFresh(t, i.claimMany(t, tx, "a", some), nil)
	expectFresh(t, i.claimMany(t, tx, "b", keys), keys)
	check(t, tx.Rollback(), "roll back")

	tx = begin(t, i.db)
	expectFresh(t, i.claimMany(t, tx, "a", keys), rest)
	check(t, tx.Commit(), "commit")
	tx = begin(t, i.db)
	expectFresh(t, i.claimMany(t, tx, "a", some), nil)
	expectFresh(t, i.claimMany(t, tx, "a", nil), nil)
	check(t, tx.Rollback(), "roll back")
}

func testClaimWaits(t *testing.T, i *inbox) {
	for _, n := range []int{1, 20} {
		for committed, end := range map[bool]func(*sql.Tx) error{true: (*sql.Tx).Commit, false: (*sql.Tx).Rollback} {
			keys, contested := someKeys(n), n/2
			first, second := begin(t, i.db), begin(t, i.db)
			expectFresh(t, i.claimMany(t, first, "a", keys[contested:contested+1]), keys[contested:contested+1])
			done := beside(func() ([]string, error) { return i.Claim(t.Context(), i.in(second), "a", keys) })
			awaitWaiting(t, i.Harness, i.db, 1)
			check(t, end(first), "end the first transaction")
			want := keys
			if committed {
				want = slices.Delete(slices.Clone(keys), contested, contested+1)
			}
			fresh, err := next(t, "the second claim", done)
			check(t, err, "claim")
			expectFresh(t, fresh, want)
			check(t, second.Commit(), "commit")
			third := begin(t, i.db)
			expectFresh(t, i.claimMany(t, third, "a", keys), nil)
			check(t, third.Rollback(), "roll back")
		}
	}
}

func testClaimManyAtOnce(t *testing.T, i *inbox) {
	const claimers, rounds, of = 4, 6, 40
	keys := someKeys(of * rounds)
	var mu sync.Mutex
	given, deadlocks := make(map[string]int), 0
	claim := func(some []string) error {
		tx, err := i.db.BeginTx(t.Context(), nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		fresh, err := i.Claim(t.Context(), i.in(tx), "a", some)
		if err != nil {
			return err
		}
		if rand.IntN(4) == 0 {
			return tx.Rollback() // gives the keys back, and others wait for them
		}
		if err := tx.Commit(); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for _, key := range fresh {
			given[key]++
		}
		return nil
	}
	var all sync.WaitGroup
	for range claimers {
		all.Go(func() {
			for round := range rounds {
				some := slices.Clone(keys[of*round : of*(round+1)])
				some = slices.DeleteFunc(some, func(string) bool { return rand.IntN(4) == 0 })
				err := claim(some)
				for ; err != nil && i.Transient(err); err = claim(some) {
					mu.Lock()
					deadlocks++
					mu.Unlock()
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for key, times := range given {
		if times != 1 {
			t.Errorf("%q was claimed %d times", key, times)
		}
	}
	t.Logf("%d keys claimed, %d errors that a retry cures", len(given), deadlocks)
}

func testClaimAscending(t *testing.T, i *inbox) {
	keys := someKeys(2)
	for _, wrong := range [][]string{{keys[1], keys[0]}, {keys[0], keys[0]}} {
		tx := begin(t, i.db)
		_, err := i.Claim(t.Context(), i.in(tx), "a", wrong)
		check(t, tx.Rollback(), "roll back")
		if err == nil || !strings.Contains(err.Error(), "ascend") {
			t.Errorf("%q: %v, must be an error", wrong, err)
		}
	}
	expectFresh(t, alone(t, i, "claim", func(tx bridge.Tx) ([]string, error) { return i.Claim(t.Context(), tx, "a", keys) }), keys)
}
