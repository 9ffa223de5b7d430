package main

import (
	"fmt"
	"slices"
)

var scenarios = []scenario{
	drainScenario,
	{
		name:     "live",
		what:     "committed and delivered messages per second with 1, 8, 32 and 128 concurrent transactions of one message of 512 bytes; at 32 also with messages that are staged before the business row, and on pgx",
		headline: headline{metric: "delivered/s"},
		trials: func(c config) []trial {
			return slices.Concat(
				sending(kind{}, c.atOnce(1, 8, fullLoad, 128), ledger, ledgerCarried, outboxPoll, afterCommit),
				sending(kind{}, c.atOnce(fullLoad), ledgerEarly, ledgerPgx, ledgerEarlyPgx, outboxPollPgx, afterCommitPgx),
				seldom(sending(kind{}, c.atOnce(fullLoad), watermillEight, oagudoOptimistic, outboxHint, outboxNotify)))
		},
	},
	{
		name:     "latency",
		what:     "from the return of COMMIT to the arrival at the target's consumer, at a steady rate of transactions with one message of 512 bytes",
		headline: headline{metric: "commit to target p99 ms", lower: true},
		trials: func(config) []trial {
			half := point{what: "half of its most", order: order{Workers: mostAtOnce, Size: 512}, half: true}
			return seldom(slices.Concat(
				sending(kind{}, append(steady(100, 300, 500), half), ledger, ledgerCarried, outboxNotify, outboxPoll, afterCommit),
				sending(kind{}, steady(300), watermillEight, oagudoOptimistic, outboxHint)))
		},
	},
	{
		name:     "transaction",
		what:     "how long a sender's transaction takes, from BEGIN to the return of COMMIT, one at a time: without a message, with an outbox's row, with the ledger's row and the staging",
		headline: headline{metric: "transaction p50 ms", lower: true},
		trials: func(config) []trial {
			var points []point
			for _, messages := range []int{1, 100} {
				for _, size := range []int{512, 64 << 10} {
					points = append(points, point{what: fmt.Sprintf("%d × %s", messages, bytes(size)),
						order: order{Workers: 1, Messages: messages, Size: size, Stop: max(250/messages, 10)}})
				}
			}
			return seldom(sending(kind{}, points, outboxPoll, bare, ledger, ledgerCarried))
		},
	},
	{
		// The transactions run other statements too, so that the broker can confirm meanwhile.
		name:     "five",
		what:     "how long a transaction of five statements (two lookups by key, two INSERTs, an UPDATE) and one message of 512 bytes takes, from BEGIN to the return of COMMIT, at 1, 8 and 32 at once (there the processors are the limit), and at a steady 200 a second: without a message, with an outbox's row, with the staging at the end and early; after-commit publishes after that time",
		headline: headline{metric: "transaction p50 ms", lower: true, ours: ledgerEarly.name},
		trials: func(c config) []trial {
			return sending(kind{Five: true}, append(c.atOnce(1, 8, fullLoad), steady(200)...),
				ledger, ledgerEarly, outboxPoll, afterCommit, bare, ledgerEarlyPgx, outboxPollPgx, afterCommitPgx)
		},
	},
	{
		// An outbox written by hand keeps the order by having one worker in its relay, for all
		// messages.
		name:     "ordered",
		what:     "32 transactions at once with a message of 512 bytes each: without order keys, over 1,000 keys in one, two and eight ordered queues, all of one key; an outbox with one worker is in order too",
		headline: headline{metric: "delivered/s"},
		trials: func(c config) (trials []trial) {
			for _, one := range []struct {
				what      string
				kind      kind
				contender *contender
			}{
				{"no keys", kind{}, ledger},
				{"1,000 keys, one queue", kind{Keys: 1000, Shards: 1}, ledger},
				{"1,000 keys, two queues", kind{Keys: 1000, Shards: 2}, ledger},
				{"1,000 keys, eight queues", kind{Keys: 1000, Shards: 8}, ledger},
				{"one key", kind{Keys: 1, Shards: 1}, ledger},
				{"one worker", kind{}, outboxPoll},
			} {
				points := c.atOnce(fullLoad)
				points[0].what = one.what
				trials = append(trials, sending(one.kind, points, one.contender)...)
			}
			return trials
		},
	},
	billScenario,
	{
		name: "slow",
		what: "300 transactions a second, while others have sent and stay open for the whole measurement: their effect on the 300",
		trials: func(config) []trial {
			var points []point
			for _, open := range []int{0, 1, 50, 1000} {
				points = append(points, point{what: fmt.Sprintf("%d open", open), order: steady(300)[0].order, open: open})
			}
			return seldom(sending(kind{}, points, ledger, afterCommit))
		},
	},
	{
		name:     "mariadb",
		what:     "committed and delivered messages per second on MariaDB, with 8 and 128 concurrent transactions of one message of 512 bytes",
		headline: headline{metric: "delivered/s", ours: ledgerCarried.name},
		trials: func(c config) []trial {
			return sending(kind{MariaDB: true}, c.atOnce(8, 128), ledger, ledgerCarried, outboxPoll, bare)
		},
	},
	{
		name:     "classic",
		what:     "committed and delivered messages per second with 1, 8, 32 and 128 concurrent transactions of one message of 512 bytes, all of them carried: with a classic staging queue and with a quorum queue, in turns within each measurement; the target is a quorum queue",
		headline: headline{metric: "delivered/s", ours: ledgerClassic.name},
		trials: func(c config) []trial {
			return []trial{{name: ledgerClassic.name, run: takeTurns(kind{}, c.atOnce(1, 8, fullLoad, 128), ledgerCarried, ledgerClassic, outboxPoll)}}
		},
	},
	sizesScenario,
	growthScenario, shardsScenario, receiveScenario, retryScenario, outageScenario, delayedScenario,
}
