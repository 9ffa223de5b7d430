package main

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/cmd/internal/mend"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/verifier"
)

// benchNumber is how many bytes the number takes at the beginning of a body.
const benchNumber = 8

// A bench sends and receives.
type bench struct {
	app          *app
	transactions int
	concurrency  int
	size         int
	rollback     float64
	rate         float64
	patience     time.Duration
	target       string
	withVerifier bool

	began  time.Time
	sender *sender.Sender
	db     *sql.DB

	mu      sync.Mutex
	letters []letter // by number
	missing int      // committed and not come
	failed  int
	failure string
}

// A letter is a message of the bench: times are since its beginning, 0 for not yet.
type letter struct {
	fate     fate
	commit   time.Duration // COMMIT had returned
	took     time.Duration // the whole transaction
	arrival  time.Duration // the first
	arrivals int32
}

type fate uint8

const (
	unsent fate = iota
	committed
	rolledBack
	aborted   // rolled back because something failed
	uncertain // COMMIT has failed: it may have happened
)

// run measures. It returns a result as soon as something has been committed.
func (b *bench) run(ctx context.Context) (*benchResult, error) {
	if b.app.config.OwnTable != "" {
		return nil, misused("BRIDGE_OWN_TABLE: bench sends with the ledger's own tables; unset it, and name with --queue a staging queue that its verifiers do not serve")
	}
	ledger, err := b.app.ledger(ctx)
	if err != nil {
		return nil, err
	}
	broker, err := b.app.broker(ctx)
	if err != nil {
		return nil, err
	}
	who, stopVerifier, err := b.verifiers(ctx, ledger, broker)
	if err != nil {
		return nil, err
	}
	defer stopVerifier()
	b.db = ledger.DB()
	b.db.SetMaxIdleConns(b.concurrency + (*verifier.Options)(nil).Connections()) // a verifier in this process is one with default options
	if b.sender, err = sender.New(ledger, broker, &sender.Options{Queue: b.app.topology().Queue, Timeout: b.patience}); err != nil {
		return nil, err
	}
	inbox, err := b.receive(ctx, broker)
	if err != nil {
		return nil, err
	}
	defer inbox.close()

	b.letters = make([]letter, b.transactions)
	bar := newProgress(b.app.stderr, "committing", b.transactions)
	b.began = time.Now()
	go b.collect(inbox)
	b.send(ctx, bar)
	bar.close()
	sent := time.Since(b.began)
	b.await(inbox)
	result := b.result(sent)
	result.Verifiers, result.Interrupted = who, ctx.Err() != nil
	return result, errors.Join(inbox.err(), result.verdict(ctx))
}

// verifiers sees that somebody judges what the bench sends.
func (b *bench) verifiers(ctx context.Context, ledger driver.Ledger, broker *bridge.Broker) (who string, stop func(), err error) {
	t := b.app.topology()
	if !b.withVerifier {
		depths, err := b.app.depths(ctx, t.Queue)
		if err != nil {
			return "", nil, err
		}
		if depths[t.Queue].Consumers == 0 {
			return "", nil, fmt.Errorf("no verifier consumes queue %q; start one, or say --with-verifier", t.Queue)
		}
		return count(depths[t.Queue].Consumers, "consumer") + " of queue " + t.Queue, func() {}, nil
	}
	v, err := verifier.New(ledger, broker, &verifier.Options{Topology: t, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return "", nil, err
	}
	working, cancel := context.WithCancel(context.WithoutCancel(ctx)) // it works until all has come
	ended := make(chan error, 1)
	go func() { ended <- v.Run(working) }()
	stop = func() {
		b.finish(working, v)
		cancel()
		<-ended
	}
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for v.Stats().Sessions == 0 {
		select {
		case <-ticker.C:
		case err := <-ended:
			cancel()
			return "", nil, fmt.Errorf("run a verifier: %w", err)
		case <-ctx.Done():
			stop()
			return "", nil, ctx.Err()
		}
	}
	return "one in this process, beside what runs already", stop, nil
}

// finish waits until the verifier in this process has judged what was rolled back too,
// or, where others have judged a part of it, until nothing is left for a while.
func (b *bench) finish(ctx context.Context, v *verifier.Verifier) {
	const quiet = 500 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, b.patience)
	defer cancel()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for since := time.Now(); time.Since(since) < quiet; {
		if stats := v.Stats(); stats.Forwarded+stats.Dropped+stats.DeadLettered >= int64(len(b.letters)) {
			return
		}
		depths, err := b.app.depths(ctx, b.app.topology().Queue)
		if err != nil {
			return // it ends anyhow
		}
		if depths[b.app.topology().Queue].Messages > 0 || v.State().Held > 0 {
			since = time.Now()
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// A benchInbox is the target and its consumer.
type benchInbox struct {
	conn       *bridge.Connection
	deliveries <-chan amqp.Delivery
	came       chan struct{} // something has come, or the connection is over
	done       chan struct{} // closed when the collecting has ended
}

func (b *bench) receive(ctx context.Context, broker *bridge.Broker) (*benchInbox, error) {
	conn, err := broker.Connect(ctx)
	if err != nil {
		return nil, about("BRIDGE_AMQP_URL", err)
	}
	inbox := &benchInbox{conn: conn, came: make(chan struct{}, 1), done: make(chan struct{})}
	if inbox.deliveries, err = b.consume(conn); err != nil {
		conn.Close()
		return nil, fmt.Errorf("make the queue to measure with: %w", err)
	}
	return inbox, nil
}

// consume makes the target. It is exclusive: nobody else's queue is ever used, and
// it goes with the connection, however that ends.
func (b *bench) consume(conn *bridge.Connection) (<-chan amqp.Delivery, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	if b.target == "" {
		b.target = "bridgectl.bench." + uuid.NewString()
	} else if _, err := ch.QueueDeclarePassive(b.target, false, false, false, false, nil); err == nil {
		return nil, fmt.Errorf("queue %q exists: name another one", b.target)
	} else if !missing(err) {
		return nil, err
	} else if ch, err = conn.Channel(); err != nil { // the answer has closed the other
		return nil, err
	}
	const durable, autoDelete, exclusive, noWait, autoAck, noLocal = false, true, true, false, true, false
	if _, err := ch.QueueDeclare(b.target, durable, autoDelete, exclusive, noWait, nil); err != nil {
		return nil, err
	}
	return ch.Consume(b.target, "", autoAck, exclusive, noLocal, noWait, nil)
}

func (i *benchInbox) close() {
	i.conn.Close()
	<-i.done
}

func (i *benchInbox) err() error { return i.conn.Err() }

// collect notes what arrives, until the connection ends.
func (b *bench) collect(inbox *benchInbox) {
	defer close(inbox.done)
	for d := range inbox.deliveries {
		now := time.Since(b.began)
		if len(d.Body) < benchNumber {
			continue
		}
		n := binary.BigEndian.Uint64(d.Body)
		if n >= uint64(len(b.letters)) {
			continue
		}
		b.mu.Lock()
		l := &b.letters[n]
		if l.arrivals++; l.arrivals == 1 {
			l.arrival = now
			if l.fate == committed {
				b.missing--
			}
		}
		b.mu.Unlock()
		select {
		case inbox.came <- struct{}{}:
		default:
		}
	}
	close(inbox.came)
}

// send runs the transactions until all have ended, or ctx has.
func (b *bench) send(ctx context.Context, bar *progress) {
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(b.concurrency, b.transactions) {
		workers.Go(func() {
			for ctx.Err() == nil {
				n := next.Add(1) - 1
				if n >= int64(b.transactions) || !b.pace(ctx, n) {
					return
				}
				// What has begun is brought to its end.
				b.transact(context.WithoutCancel(ctx), int(n))
				bar.add(1)
			}
		})
	}
	workers.Wait()
}

// pace waits until the transaction is due; false if ctx ends before.
func (b *bench) pace(ctx context.Context, n int64) bool {
	if b.rate == 0 {
		return true
	}
	due := b.began.Add(time.Duration(float64(n) / b.rate * float64(time.Second)))
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (b *bench) transact(ctx context.Context, n int) {
	body := make([]byte, b.size)
	binary.BigEndian.PutUint64(body, uint64(n))
	began := time.Now()
	became, err := b.transaction(ctx, bridge.Message{RoutingKey: b.target, Publishing: amqp.Publishing{
		ContentType: "application/octet-stream", Type: "bridgectl bench", Body: body,
	}}, rand.Float64()*100 < b.rollback)
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	l := &b.letters[n]
	l.fate, l.commit, l.took = became, now.Sub(b.began), now.Sub(began)
	if became == committed && l.arrivals == 0 { // some arrive before COMMIT has returned
		b.missing++
	}
	if err != nil {
		if b.failed++; b.failure == "" {
			b.failure = mend.Line(err.Error())
		}
	}
}

func (b *bench) transaction(ctx context.Context, m bridge.Message, rollBack bool) (fate, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*b.patience)
	defer cancel()
	tx, err := b.db.BeginTx(ctx, nil)
	if err != nil {
		return unsent, fmt.Errorf("begin: %w", err)
	}
	if _, err := b.sender.SendTx(ctx, bridge.SQL(tx), m); err != nil {
		_ = tx.Rollback()
		return aborted, err
	}
	if rollBack {
		if err := tx.Rollback(); err != nil {
			return aborted, fmt.Errorf("roll back: %w", err)
		}
		return rolledBack, nil
	}
	if err := tx.Commit(); err != nil {
		return uncertain, fmt.Errorf("commit: %w", err)
	}
	return committed, nil
}

// await waits until all that was committed has come, as long as something comes in
// time.
func (b *bench) await(inbox *benchInbox) {
	timer := time.NewTimer(b.patience)
	defer timer.Stop()
	for !b.complete() {
		select {
		case _, ok := <-inbox.came:
			if !ok {
				return
			}
			timer.Reset(b.patience)
		case <-timer.C:
			return
		}
	}
}

func (b *bench) complete() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.missing == 0
}

func (b *bench) result(sent time.Duration) *benchResult {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := &benchResult{Failed: b.failed, Failure: b.failure, Size: b.size, Concurrency: b.concurrency}
	var latencies, took []time.Duration
	var last time.Duration
	for _, l := range b.letters {
		if l.arrivals > 1 {
			r.Twice++
		}
		last = max(last, l.arrival)
		switch {
		case l.fate == committed:
			r.Committed++
			took = append(took, l.took)
			if l.arrivals == 0 {
				r.Missing++
				continue
			}
			r.Delivered++
			latencies = append(latencies, max(0, l.arrival-l.commit)) // the verifier may be faster than COMMIT's return
		case l.fate == rolledBack || l.fate == aborted:
			if l.fate == rolledBack {
				r.RolledBack++
			}
			if l.arrivals > 0 {
				r.Ghosts++
			}
		case l.fate == uncertain && l.arrivals > 0:
			r.Uncertain++
		}
	}
	r.Transactions = r.Committed + r.RolledBack
	r.CommitRate = float64(r.Committed) / max(sent.Seconds(), 1e-9)
	if r.Delivered > 0 {
		r.DeliveryRate = float64(r.Delivered) / max(last.Seconds(), 1e-9)
	}
	r.Latency, r.Transaction = spread(latencies), spread(took)
	return r
}

// spread sorts durations and reads off how they spread.
func spread(all []time.Duration) benchSpread {
	if len(all) == 0 {
		return benchSpread{}
	}
	slices.Sort(all)
	at := func(q float64) float64 {
		i := int(math.Ceil(q*float64(len(all)))) - 1
		return float64(all[max(0, i)].Microseconds()) / 1000
	}
	return benchSpread{P50: at(0.5), P90: at(0.9), P99: at(0.99), P999: at(0.999), Max: at(1)}
}
