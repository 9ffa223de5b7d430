package parts

import (
	"context"
	"errors"

	"github.com/twoqueue/twoqueue/verifier"
)

// verify runs a verifier until ctx ends.
func verify(ctx context.Context, b Brief) error {
	db, _, ledger, err := openLedger(ctx, b)
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
	b.Options.Observer = observer{}
	ledger.DB().SetMaxIdleConns(b.Options.Connections())
	v, err := verifier.New(ledger, broker, &b.Options)
	if err != nil {
		return err
	}
	err = retry(ctx, "run verifier", func() error { return v.Run(ctx) })
	if errors.Is(err, verifier.ErrNotDrained) {
		return nil // messages that are handed back are delivered again
	}
	return err
}

// observer writes into the diary which messages are redelivered, which messages the verifier has
// moved to the waiting queue, and which deliveries it has finished.
type observer struct{}

func (observer) Done(e verifier.Event) {
	if e.Redelivered {
		note("%s %s", e.ID, Redelivered)
	}
	if e.Verdict == verifier.SetAside {
		note("%s set aside", e.ID)
	} else {
		note("%s %s%s", e.ID, Done, e.Verdict)
	}
}

func (observer) SessionEnded(error) {}
