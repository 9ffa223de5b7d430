package main

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/oagudo/outbox"
)

// The outbox of github.com/oagudo/outbox. Its application provides the publishing function, which
// its reader calls for one message after the other.
var oagudoOptimistic = &contender{
	name:  "oagudo-optimistic",
	what:  "oagudo/outbox v0.14 with its optimistic publishing right after the commit; its reader as it comes, every 10 s",
	setUp: setUpOagudo,
	relay: relayOagudo,
	open:  openOagudo,
}

// setUpOagudo creates the table of the library's README.
func setUpOagudo(ctx context.Context, _ place, db *sql.DB) error {
	return run(ctx, db, `CREATE TABLE outbox (
	id UUID PRIMARY KEY,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	scheduled_at TIMESTAMP WITH TIME ZONE NOT NULL,
	metadata BYTEA,
	payload BYTEA NOT NULL,
	times_attempted INTEGER NOT NULL
)`,
		`CREATE INDEX idx_outbox_created_at ON outbox (created_at)`,
		`CREATE INDEX idx_outbox_scheduled_at ON outbox (scheduled_at)`)
}

func relayOagudo(ctx context.Context, p place) error {
	db, err := p.open(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	out, err := newOagudoPublisher(p, 1)
	if err != nil {
		return err
	}
	defer out.close()
	reader := outbox.NewReader(outbox.NewDBContext(db, outbox.SQLDialectPostgres), out,
		outbox.WithInterval(10*time.Second), outbox.WithReadBatchSize(batch), outbox.WithDeleteBatchSize(batch))
	reader.Start()
	<-ctx.Done()
	return reader.Stop(context.WithoutCancel(ctx))
}

func openOagudo(_ context.Context, p place, b business) (application, error) {
	out, err := newOagudoPublisher(p, 2)
	if err != nil {
		return nil, err
	}
	writer := outbox.NewWriter(outbox.NewDBContext(b.db, outbox.SQLDialectPostgres), outbox.WithOptimisticPublisher(out))
	return &oagudoApplication{writer, out}, nil
}

type oagudoApplication struct {
	writer *outbox.Writer
	out    *oagudoPublisher
}

var errDecidedAgainst = errors.New("rolled back")

func (a *oagudoApplication) transact(ctx context.Context, bodies [][]byte, decide func() bool) (instant, error) {
	if len(bodies) != 1 {
		return 0, errors.New("oagudo/outbox sends one message in a transaction")
	}
	err := a.writer.Write(ctx, outbox.NewMessage(bodies[0]), func(ctx context.Context, tx outbox.TxQueryer) error {
		if _, err := tx.ExecContext(ctx, insertOrder, 4711, "one order"); err != nil {
			return err
		}
		if !decide() {
			return errDecidedAgainst
		}
		return nil
	})
	switch {
	case errors.Is(err, errDecidedAgainst):
		return 0, nil
	case err != nil:
		return 0, err
	}
	return now(), nil
}

func (a *oagudoApplication) close() { a.out.close() }

// oagudoPublisher publishes one message and waits for its confirm.
type oagudoPublisher struct {
	*publisher
	queue string
}

func newOagudoPublisher(p place, channels int) (*oagudoPublisher, error) {
	out, err := newPublisher(p.AMQP, channels)
	if err != nil {
		return nil, err
	}
	return &oagudoPublisher{out, p.Target}, nil
}

func (p *oagudoPublisher) Publish(ctx context.Context, m *outbox.Message) error {
	return p.publish(ctx, letter{queue: p.queue, id: m.ID.String(), body: m.Payload})
}
