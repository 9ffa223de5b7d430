package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

func newBenchCommand(a *app) *cobra.Command {
	b := &bench{app: a}
	var yes bool
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Send messages through your own servers, and measure",
		Long: `Commits transactions that send one message each, to a queue of its own that is deleted
afterwards, and measures how many arrive there each second, and how long each takes from
the return of COMMIT. It also counts what is lost, comes twice, or comes although its
transaction rolled back; there must be none of the last and the first.

It writes to the ledger and uses the staging queue, beside whatever else is going on.
The verifiers that run are measured; --with-verifier runs one in this process instead or
in addition. Where the verifiers have an allow-list (BRIDGE_ALLOW), name a queue that is
on it with --target.

Each transaction has nothing in it but the row of the ledger. Interrupted, it waits for
what it has committed. Should it be killed, its queue goes, and messages on their way to
it end in the dead queue.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := b.check(yes); err != nil {
				return err
			}
			result, err := b.run(cmd.Context())
			if result == nil {
				return err
			}
			if printErr := a.print(result); err == nil {
				err = printErr
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.IntVarP(&b.transactions, "transactions", "n", 10_000, "how many transactions")
	flags.IntVarP(&b.concurrency, "concurrency", "c", 32, "how many at the same time, each on a database connection of its own")
	flags.IntVar(&b.size, "size", 512, "bytes of each message's body, at least 8")
	flags.Float64Var(&b.rollback, "rollback", 0, "how many percent of the transactions roll back after they have sent")
	flags.Float64Var(&b.rate, "rate", 0, "transactions begun per second (0: as many as it can)")
	flags.DurationVar(&b.patience, "patience", time.Minute, "how long to wait for the next message after the last commit")
	flags.StringVar(&b.target, "target", "", "the name of the queue to use, which must not exist (default: a unique one)")
	flags.BoolVar(&b.withVerifier, "with-verifier", false, "run a verifier in this process")
	flags.BoolVarP(&yes, "yes", "y", false, "do it: it writes to the ledger and the staging queue")
	return cmd
}

const (
	benchMost     = 10_000_000 // transactions: each takes some memory
	benchMostSize = 16 << 20
)

func (b *bench) check(yes bool) error {
	switch {
	case b.transactions < 1 || b.transactions > benchMost:
		return misused("--transactions: must be 1 to %d", benchMost)
	case b.concurrency < 1 || b.concurrency > 1000:
		return misused("--concurrency: must be 1 to 1000")
	case b.size < benchNumber || b.size > benchMostSize:
		return misused("--size: must be %d to %d", benchNumber, benchMostSize)
	case b.rollback < 0 || b.rollback > 100:
		return misused("--rollback: must be 0 to 100")
	case b.rate < 0:
		return misused("--rate: must not be negative")
	case b.patience <= 0:
		return misused("--patience: must be positive")
	case len(b.target) > 255:
		return misused("--target: has more than 255 bytes")
	case !yes:
		return misused("this writes to the ledger and the staging queue, beside whatever else is going on there: say --yes")
	}
	return nil
}

// A benchResult is what was measured. Latencies are in milliseconds, from the return
// of COMMIT to the arrival at the target's consumer.
type benchResult struct {
	Transactions int     `json:"transactions"` // that ended as they should
	Committed    int     `json:"committed"`
	RolledBack   int     `json:"rolled_back"`
	Failed       int     `json:"failed"`
	Failure      string  `json:"failure,omitempty"` // the first one
	CommitRate   float64 `json:"committed_per_second"`

	Delivered    int     `json:"delivered"`
	DeliveryRate float64 `json:"delivered_per_second"`
	Missing      int     `json:"missing"`        // committed and not come in time
	Twice        int     `json:"twice"`          // came more than once
	Ghosts       int     `json:"ghosts"`         // came although rolled back
	Uncertain    int     `json:"uncertain_came"` // came, of those whose commit had failed

	Latency     benchSpread `json:"latency_ms"`
	Transaction benchSpread `json:"transaction_ms"` // from BEGIN to the return of COMMIT

	Size        int    `json:"size"`
	Concurrency int    `json:"concurrency"`
	Verifiers   string `json:"verifiers"`
	Interrupted bool   `json:"interrupted"`
}

// benchSpread is how values spread.
type benchSpread struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

func (r *benchResult) write(p *page) {
	rows := [][]string{
		{"verifiers", r.Verifiers},
		{"transactions", fmt.Sprintf("%d of %s, %d at a time: %d committed, %d rolled back, %d failed",
			r.Transactions+r.Failed, sizeText(r.Size), r.Concurrency, r.Committed, r.RolledBack, r.Failed)},
		{"committed", perSecond(&r.CommitRate) + "/s"},
		{"delivered", fmt.Sprintf("%s/s, %d messages", perSecond(&r.DeliveryRate), r.Delivered)},
		{"missing", strconv.Itoa(r.Missing)},
		{"came twice", strconv.Itoa(r.Twice)},
		{"came though rolled back", strconv.Itoa(r.Ghosts)},
	}
	if r.Failed > 0 {
		rows = append(rows, []string{"first failure", r.Failure})
	}
	if r.Uncertain > 0 {
		rows = append(rows, []string{"came though COMMIT failed", strconv.Itoa(r.Uncertain)})
	}
	p.table(nil, rows)
	p.space()
	cells := func(name string, s benchSpread) []string {
		row := []string{name}
		for _, v := range []float64{s.P50, s.P90, s.P99, s.P999, s.Max} {
			row = append(row, strconv.FormatFloat(v, 'f', 1, 64))
		}
		return row
	}
	p.table([]string{"MILLISECONDS", "P50", "P90", "P99", "P99.9", "MAX"}, [][]string{
		cells("COMMIT to arrival", r.Latency), cells("BEGIN to COMMIT", r.Transaction),
	})
}

func sizeText(bytes int) string { return strconv.Itoa(bytes) + " bytes" }

// verdict is the error of a run that has shown something wrong.
func (r *benchResult) verdict(ctx context.Context) error {
	switch {
	case r.Ghosts > 0:
		return fmt.Errorf("%s came although the transactions rolled back: run bridgectl doctor", count(r.Ghosts, "message"))
	case r.Missing > 0 && ctx.Err() == nil:
		return fmt.Errorf("%s did not come in time: see bridgectl status and the verifiers' logs", count(r.Missing, "committed message"))
	case r.Failed > 0:
		return fmt.Errorf("%s failed: %s", count(r.Failed, "transaction"), r.Failure)
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return nil
}
