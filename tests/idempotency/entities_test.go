package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// What is the same for the strategies that keep marks: Latest, Ordered and HighWater.
// The body of a message is its entity and its version or key, with a colon between
// them; its effect is a row with that text in the table of effects.

// A store is a database that a receiver can have.
type store struct {
	driver  string
	dialect migrate.Dialect
	dsn     func(t testing.TB) string
	effects string // the table, with a column n that counts
	insert  string // an effect
	open    func(ctx context.Context, db *sql.DB) (driver.Keeper, error)
}

var stores = map[string]store{
	"PostgreSQL": {"pgx", migrate.PostgreSQL, servertest.PostgresDB,
		`CREATE TABLE effects (n bigserial PRIMARY KEY, event text)`, `INSERT INTO effects (event) VALUES ($1)`,
		func(ctx context.Context, db *sql.DB) (driver.Keeper, error) { return postgres.OpenInbox(ctx, db) }},
	"MariaDB": {"mysql", migrate.MySQL, servertest.MariaDBDatabase,
		`CREATE TABLE effects (n BIGINT AUTO_INCREMENT PRIMARY KEY, event TEXT)`, `INSERT INTO effects (event) VALUES (?)`,
		func(ctx context.Context, db *sql.DB) (driver.Keeper, error) { return mysql.OpenInbox(ctx, db) }},
	"SQLite": {"sqlite", migrate.SQLite, func(t testing.TB) string {
		return "file:" + filepath.Join(t.TempDir(), "receiver.db") + "?_pragma=journal_mode(wal)&_pragma=busy_timeout(120000)"
	},
		`CREATE TABLE effects (n INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT)`, `INSERT INTO effects (event) VALUES (?)`,
		func(ctx context.Context, db *sql.DB) (driver.Keeper, error) { return sqlite.OpenInbox(ctx, db) }},
}

// A receiver is a service with its database.
type receiver struct {
	store
	db     *sql.DB
	keeper driver.Keeper
}

func (s store) connect(ctx context.Context, dsn string) (*receiver, error) {
	db, err := sql.Open(s.driver, dsn)
	if err != nil {
		return nil, err
	}
	keeper, err := s.open(ctx, db)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &receiver{s, db, keeper}, nil
}

// create makes a database, and returns its DSN.
func (s store) create(t *testing.T) string {
	t.Helper()
	dsn := s.dsn(t)
	db, err := sql.Open(s.driver, dsn)
	must(t, err)
	defer db.Close()
	must(t, migrate.Inbox(t.Context(), db, s.dialect))
	_, err = db.ExecContext(t.Context(), s.effects)
	must(t, err)
	return dsn
}

// storeNames are in the order in which they take turns.
var storeNames = []string{"PostgreSQL", "MariaDB", "SQLite"}

func onEachStore(t *testing.T, test func(t *testing.T, store, dsn string, r *receiver)) {
	for _, name := range storeNames {
		s := stores[name]
		t.Run(name, func(t *testing.T) {
			dsn := s.create(t)
			r, err := s.connect(t.Context(), dsn)
			must(t, err)
			t.Cleanup(func() { must(t, r.db.Close()) })
			test(t, name, dsn, r)
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *receiver) place(ctx context.Context, tx *sql.Tx, event string) error {
	_, err := tx.ExecContext(ctx, r.insert, event)
	return err
}

// effects returns the versions or keys that took effect, by entity, in order.
func (r *receiver) effectsOf(t *testing.T) map[string][]string {
	t.Helper()
	rows, err := r.db.QueryContext(t.Context(), `SELECT event FROM effects ORDER BY n`)
	must(t, err)
	defer rows.Close()
	all := make(map[string][]string)
	for rows.Next() {
		var event string
		must(t, rows.Scan(&event))
		entity, key, _ := strings.Cut(event, ":")
		all[entity] = append(all[entity], key)
	}
	must(t, rows.Err())
	return all
}

func keyOf(d amqp.Delivery) (entity, key string, err error) {
	entity, key, found := strings.Cut(string(d.Body), ":")
	if !found {
		return "", "", fmt.Errorf("no colon in %q", d.Body)
	}
	return entity, key, nil
}

func versionOf(d amqp.Delivery) (entity string, version int64, err error) {
	entity, text, err := keyOf(d)
	if err != nil {
		return "", 0, err
	}
	version, err = strconv.ParseInt(text, 10, 64)
	return entity, version, err
}

// A handler handles a delivery by one of the strategies, with an effect that may fail.
type handler func(ctx context.Context, d amqp.Delivery, effect func(ctx context.Context, tx *sql.Tx, event string) error) error

func (r *receiver) latest(keeper driver.Keeper, opts idempotency.Options) (handler, error) {
	opts.HandBack = !opts.DeadLetterExchange
	latest, err := idempotency.NewLatest(keeper, "shop", versionOf, &opts)
	return func(ctx context.Context, d amqp.Delivery, effect func(context.Context, *sql.Tx, string) error) error {
		return latest.Handle(ctx, r.db, d, func(ctx context.Context, tx *sql.Tx) error { return effect(ctx, tx, string(d.Body)) })
	}, err
}

func (r *receiver) ordered(keeper driver.Keeper, opts idempotency.Options) (handler, error) {
	opts.HandBack = !opts.DeadLetterExchange
	ordered, err := idempotency.NewOrdered(keeper, "shop", versionOf, &idempotency.OrderedOptions{Options: opts})
	return func(ctx context.Context, d amqp.Delivery, effect func(context.Context, *sql.Tx, string) error) error {
		return ordered.Handle(ctx, r.db, d, func(ctx context.Context, tx *sql.Tx, event amqp.Delivery) error {
			return effect(ctx, tx, string(event.Body))
		})
	}, err
}

func (r *receiver) highWater(keeper driver.Keeper, opts idempotency.Options) (handler, error) {
	opts.HandBack = !opts.DeadLetterExchange
	highWater, err := idempotency.NewHighWater(keeper, "shop", keyOf, &opts)
	return func(ctx context.Context, d amqp.Delivery, effect func(context.Context, *sql.Tx, string) error) error {
		return highWater.Handle(ctx, r.db, d, func(ctx context.Context, tx *sql.Tx) error { return effect(ctx, tx, string(d.Body)) })
	}, err
}

// workThrough hands shuffled copies of the events of many entities to workers whose
// handlers fail at random and whose connections are cut.
func workThrough(t *testing.T, entities, versions int, handle handler, store func(context.Context, *sql.Tx, string) error) {
	t.Helper()
	const workers, lives = 8, 3
	q := newQueue(t, quorumToDead)
	var events []string
	for entity := range entities {
		for version := 1; version <= versions; version++ {
			event := fmt.Sprintf("e%d:%d", entity, version)
			events = append(events, event, event)
		}
	}
	rand.Shuffle(len(events), func(a, b int) { events[a], events[b] = events[b], events[a] })
	q.publish(events...)

	effect := func(ctx context.Context, tx *sql.Tx, event string) error {
		if err := store(ctx, tx, event); err != nil {
			return err
		}
		return mishap()
	}
	var ended sync.WaitGroup
	for life := range lives {
		deliveries := q.consume()
		enough := make(chan struct{}, len(events))
		for range workers {
			ended.Go(func() {
				for d := range deliveries {
					if err := handle(t.Context(), d, effect); err != nil && !errors.Is(err, idempotency.ErrNotAcked) {
						t.Error(err)
					}
					enough <- struct{}{}
				}
			})
		}
		if life < lives-1 {
			for range len(events) / lives {
				<-enough
			}
		} else {
			eventually(t, "the queue is empty", func() (bool, error) {
				state, err := q.QueueDeclarePassive(q.name, true, false, false, false, nil)
				return state.Messages == 0, err
			})
		}
		q.stopConsumers()
		ended.Wait()
	}
	for { // what was acked in vain
		d, ok, err := q.Get(q.name, false)
		must(t, err)
		if !ok {
			break
		}
		must(t, handle(t.Context(), d, store))
	}
	q.wantEmpty()
	if d, ok, err := q.Get(dead, true); err != nil || ok {
		t.Errorf("the dead queue holds %q (%v)", d.Body, err)
	}
}

var patient = idempotency.Options{Attempts: 100, MinDelay: time.Millisecond, MaxDelay: 5 * time.Millisecond,
	DeadLetterExchange: true, Logger: slog.New(slog.DiscardHandler)}

func TestLatestHandlesTheLatestLastWhoeverWorks(t *testing.T) {
	const entities, versions = 6, 12
	onEachStore(t, func(t *testing.T, _, _ string, r *receiver) {
		handle, err := r.latest(r.keeper, patient)
		must(t, err)
		workThrough(t, entities, versions, handle, r.place)
		effects := r.effectsOf(t)
		for entity := range entities {
			last := int64(0)
			for _, text := range effects[fmt.Sprint("e", entity)] {
				version, err := strconv.ParseInt(text, 10, 64)
				must(t, err)
				if version <= last {
					t.Errorf("version %d took effect after %d", version, last)
				}
				last = version
			}
			if last != versions {
				t.Errorf("the last effect is that of version %d", last)
			}
		}
	})
}

func TestOrderedHandlesEachOnceInOrderWhoeverWorks(t *testing.T) {
	const entities, versions = 6, 12
	var want []string
	for version := 1; version <= versions; version++ {
		want = append(want, strconv.Itoa(version))
	}
	onEachStore(t, func(t *testing.T, _, _ string, r *receiver) {
		ordered, err := idempotency.NewOrdered(r.keeper, "shop", versionOf, &idempotency.OrderedOptions{Options: patient, GapAge: 50 * time.Millisecond})
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var watch sync.WaitGroup
		watch.Go(func() {
			ordered.Watch(ctx, r.db, func(ctx context.Context, tx *sql.Tx, event amqp.Delivery) error {
				return r.place(ctx, tx, string(event.Body))
			})
		})
		defer watch.Wait()
		defer cancel()
		workThrough(t, entities, versions, func(ctx context.Context, d amqp.Delivery, effect func(context.Context, *sql.Tx, string) error) error {
			return ordered.Handle(ctx, r.db, d, func(ctx context.Context, tx *sql.Tx, event amqp.Delivery) error {
				return effect(ctx, tx, string(event.Body))
			})
		}, r.place)
		eventually(t, "nothing is kept", func() (bool, error) { // what had failed is left to Watch
			gaps, err := ordered.Gaps(t.Context(), r.db, 10)
			return len(gaps) == 0, err
		})
		effects := r.effectsOf(t)
		for entity := range entities {
			if got := effects[fmt.Sprint("e", entity)]; !slices.Equal(got, want) {
				t.Errorf("versions %v took effect", got)
			}
		}
	})
}

// Two that are given messages of one source at the same moment handle them one after
// the other.
func TestHighWaterHandlesOneMessageOfASourceAtATime(t *testing.T) {
	onEachStore(t, func(t *testing.T, _, _ string, r *receiver) {
		handle, err := r.highWater(r.keeper, idempotency.Options{DeadLetterExchange: true})
		must(t, err)
		q := newQueue(t, quorumToDead)
		q.publish("s:1", "s:1", "s:1", "s:1")
		deliveries := q.consume()
		var all sync.WaitGroup
		for range 4 {
			d := next(t, deliveries)
			all.Go(func() {
				if err := handle(t.Context(), d, r.place); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if got := r.effectsOf(t)["s"]; !slices.Equal(got, []string{"1"}) {
			t.Errorf("keys %v took effect", got)
		}
		q.wantEmpty()
	})
}

// Neither a message that is handed back nor a consumer that is gone changes the order,
// in whatever kind of queue and with however many messages under way.
func TestHighWaterKeepsTheOrderOfASingleConsumer(t *testing.T) {
	const keys = 30
	r, err := stores["SQLite"].connect(t.Context(), stores["SQLite"].create(t))
	must(t, err)
	t.Cleanup(func() { must(t, r.db.Close()) })
	handle, err := r.highWater(r.keeper, idempotency.Options{})
	must(t, err)
	for name, arguments := range map[string]amqp.Table{
		"quorum":            {"x-queue-type": "quorum", "x-single-active-consumer": true},
		"quorum with limit": {"x-queue-type": "quorum", "x-single-active-consumer": true, "x-delivery-limit": 1_000_000},
		"classic":           {"x-queue-type": "classic", "x-single-active-consumer": true},
	} {
		for _, prefetch := range []int{1, 10} {
			t.Run(fmt.Sprint(name, ", prefetch ", prefetch), func(t *testing.T) {
				q := newQueue(t, arguments)
				var want []string
				for key := range keys {
					want = append(want, fmt.Sprintf("%03d", key))
					q.publish(fmt.Sprint(t.Name(), ":", want[key]))
				}
				for handled := 0; handled < keys; {
					conn, channel := q.dial()
					must(t, channel.Qos(prefetch, 0, false))
					deliveries, err := channel.Consume(q.name, "", false, false, false, false, nil)
					must(t, err)
					ctx, cancel := context.WithCancel(t.Context())
					for n := 0; handled < keys; n++ {
						d, open := <-deliveries
						if !open {
							break
						}
						if n == 4 {
							cancel() // hands back this and all that follow
						}
						err := handle(ctx, d, r.place)
						if err != nil && !errors.Is(err, idempotency.ErrHandedBack) {
							t.Fatal(err)
						}
						if err == nil {
							handled++
						}
					}
					cancel()
					must(t, conn.Close())
				}
				if got := r.effectsOf(t)[t.Name()]; !slices.Equal(got, want) {
					t.Errorf("keys %v took effect, must be %v", got, want)
				}
			})
		}
	}
}
