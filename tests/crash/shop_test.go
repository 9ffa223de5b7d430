package crash_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"
)

// tills is the number of transactions that the shop runs at the same time.
const tills = 2

// keepShop runs the shop: each till serves one customer after the other. It ignores errors, since
// a server may be down. The pauses only shape the traffic; no test relies on them.
func (v *victim) keepShop(ctx context.Context) error {
	var open sync.WaitGroup
	for range tills {
		open.Go(func() {
			for {
				if err := v.serve(ctx); err != nil {
					fmt.Fprintln(os.Stderr, "shop:", err)
					pauseUpTo(time.Second)
				}
				pauseUpTo(50 * time.Millisecond)
			}
		})
	}
	open.Wait()
	return nil
}

// serve places up to 20 orders in one transaction. One transaction in two stages early, one in
// three is slow, one in five rolls back.
func (v *victim) serve(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var tx *sql.Tx
	var err error
	if ids := newIDs(1 + rand.IntN(20)); rand.IntN(2) == 0 {
		tx, err = placeEarly(ctx, v.db, v.sender, v.Target, func() {}, ids...)
	} else {
		tx, err = place(ctx, v.db, v.sender, v.Target, ids...)
	}
	if err != nil {
		return err
	}
	if rand.IntN(3) == 0 {
		pauseUpTo(200 * time.Millisecond)
	}
	if rand.IntN(5) == 0 {
		return tx.Rollback()
	}
	return tx.Commit()
}

func pauseUpTo(most time.Duration) { time.Sleep(rand.N(most)) }
