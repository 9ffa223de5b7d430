package parts

import (
	"context"

	"github.com/twoqueue/twoqueue/verifier"
)

// verify judges until ctx ends.
func verify(ctx context.Context, b Brief) error {
	db, ledger, err := openLedger(ctx, b)
	if err != nil {
		return err
	}
	defer db.Close()
	broker, err := openBroker(ctx, b)
	if err != nil {
		return err
	}
	defer broker.Close()
	b.Options.Logger = logger()
	v, err := verifier.New(ledger, broker, &b.Options)
	if err != nil {
		return err
	}
	return retry(ctx, "run verifier", func() error { return v.Run(ctx) })
}
