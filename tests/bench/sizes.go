package main

import (
	"context"
	"fmt"
)

// sizesScenario finds the size from which carrying is slower (sender.Options.CarryBytes). A carried
// message goes through the database; a message that is not carried waits for the broker.
var sizesScenario = scenario{
	name:     "sizes",
	what:     "how long a transaction with one message takes by the message's size, one at a time and 8 at once, on PostgreSQL and MariaDB, if all messages are carried, if none is, and with an outbox's row; the processor time until a message has come; and the bytes of WAL of a message on PostgreSQL, beyond the business row. The contenders take turns within each measurement",
	headline: headline{metric: "transaction p50 ms", lower: true, ours: ledgerAlways.name},
	trials: func(c config) (trials []trial) {
		sizes := []int{512, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10}
		compared := []*contender{ledgerAlways, ledger, outboxPoll}
		for _, k := range []kind{{}, {MariaDB: true}} {
			var points []point
			for _, size := range sizes {
				for _, p := range c.atOnce(1, 8) {
					p.what = fmt.Sprintf("%s, %s, %s", pick(k.MariaDB, "MariaDB", "PostgreSQL"), bytes(size), p.what)
					p.order.Size = size
					points = append(points, p)
				}
			}
			trials = append(trials, trial{name: ledgerAlways.name, kind: k, run: takeTurns(k, points, compared...)})
		}
		for _, size := range sizes {
			for _, one := range compared {
				trials = append(trials, trial{name: one.name, seldom: true, run: func(ctx context.Context, w *world, add adder) error {
					return w.bill(ctx, one, size, add)
				}})
			}
		}
		return trials
	},
}
