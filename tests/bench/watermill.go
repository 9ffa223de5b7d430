package main

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/twoqueue/twoqueue/bridge"
)

// Watermill's outbox: its SQL publisher in the transaction, and its forwarder from the SQL
// subscriber to the AMQP publisher. A forwarder publishes one message after the other and awaits
// each confirm, so more topics mean more speed.
var watermillEight = &contender{
	name:  "watermill-8",
	what:  "watermill-sql v4, watermill-amqp v3 with confirms; 8 topics, a forwarder for each, which polls every 5 ms, 500 rows a batch",
	setUp: watermillTopics(8).setUp,
	relay: watermillTopics(8).relay,
	open:  watermillTopics(8).open,
}

// watermillTopics is the number of topics that the messages are spread over.
type watermillTopics int

const watermillPoll = 5 * time.Millisecond

var watermillSchema = wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: batch}

func topicName(i int) string { return fmt.Sprintf("outbox_%d", i) }

func (n watermillTopics) setUp(_ context.Context, _ place, db *sql.DB) error {
	for i := range int(n) {
		s, err := newWatermillSubscriber(db)
		if err != nil {
			return err
		}
		if err := s.SubscribeInitialize(topicName(i)); err != nil {
			return err
		}
	}
	return nil
}

func newWatermillSubscriber(db *sql.DB) (*wsql.Subscriber, error) {
	return wsql.NewSubscriber(wsql.BeginnerFromStdSQL(db), wsql.SubscriberConfig{
		PollInterval:     watermillPoll,
		SchemaAdapter:    watermillSchema,
		OffsetsAdapter:   wsql.DefaultPostgreSQLOffsetsAdapter{},
		InitializeSchema: true,
	}, watermill.NopLogger{})
}

func (n watermillTopics) relay(ctx context.Context, p place) error {
	db, err := p.open(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	config := wamqp.NewDurableQueueConfig(p.AMQP)
	config.Publish.ConfirmDelivery = true
	config.Publish.Mandatory = true
	config.Publish.ChannelPoolSize = int(n)
	out, err := wamqp.NewPublisher(config, watermill.NopLogger{})
	if err != nil {
		return err
	}
	defer out.Close()
	ended := make(chan error, int(n))
	for i := range int(n) {
		in, err := newWatermillSubscriber(db)
		if err != nil {
			return err
		}
		f, err := forwarder.NewForwarder(in, out, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: topicName(i), CloseTimeout: time.Second})
		if err != nil {
			return err
		}
		go func() { ended <- f.Run(ctx) }()
	}
	for range int(n) {
		if err := <-ended; err != nil {
			return err
		}
	}
	return nil
}

func (n watermillTopics) open(_ context.Context, p place, b business) (application, error) {
	return &watermillApplication{b, int(n), p.Target}, nil
}

type watermillApplication struct {
	business
	topics int
	target string
}

func (a *watermillApplication) transact(ctx context.Context, bodies [][]byte, decide func() bool) (instant, error) {
	return a.aroundSQL(ctx, decide, func(tx *sql.Tx) error {
		if err := a.work(ctx, bridge.SQL(tx)); err != nil {
			return err
		}
		toTable, err := wsql.NewPublisher(wsql.TxFromStdSQL(tx), wsql.PublisherConfig{SchemaAdapter: watermillSchema}, watermill.NopLogger{})
		if err != nil {
			return err
		}
		p := forwarder.NewPublisher(toTable, forwarder.PublisherConfig{ForwarderTopic: topicName(rand.IntN(a.topics))})
		messages := make([]*message.Message, len(bodies))
		for i, body := range bodies {
			messages[i] = message.NewMessage(watermill.NewUUID(), body)
		}
		return p.Publish(a.target, messages...)
	})
}

func (a *watermillApplication) close() {}
