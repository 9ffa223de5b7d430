package verifier

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/proof"
	"github.com/twoqueue/twoqueue/verifier/internal/forward"
	"github.com/twoqueue/twoqueue/verifier/internal/pipe"
)

// ErrNotDrained means that a verifier ended before all judged messages were finished: Options.Drain
// was over, or the broker or the database was unavailable. No message is lost. Unacked messages are
// handed back; those already forwarded may come twice.
var ErrNotDrained = errors.New("not drained")

// A Verifier judges staged messages by one ledger. Any number of verifiers, in any number of
// processes, may work on one staging queue.
type Verifier struct {
	*resources
	current    currentSession
	remembered forward.Remembered // only Run uses it

	fellBack, noClaim sync.Once // each is logged once
}

// New returns a verifier. Its ledger's connection pool must allow Options.Connections open
// connections, or New returns an error. The pool should keep as many idle, by db.SetMaxIdleConns:
// database/sql keeps 2 by default, and the verifier would then reconnect again and again. New does
// not change the pool. The caller keeps ownership of ledger and broker.
func New(ledger driver.Ledger, broker *bridge.Broker, opts *Options) (*Verifier, error) {
	if ledger == nil {
		return nil, errors.New("new verifier: ledger is nil")
	}
	if broker == nil {
		return nil, errors.New("new verifier: broker is nil")
	}
	options, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("new verifier: %w", err)
	}
	if ledger.Features().KeepsRows && len(options.Allow) == 0 {
		return nil, errors.New("new verifier: Options.Allow is empty; an own table needs it, since its rows stay")
	}
	need := options.Connections()
	if most := ledger.DB().Stats().MaxOpenConnections; most > 0 && most < need {
		return nil, fmt.Errorf("new verifier: the ledger's pool allows %d open connections and Options.Settlers of %d needs %d: call SetMaxOpenConns(%d) on it (of a pgxpool, set MaxConns), or lower Options.Settlers",
			most, options.Settlers, need, need)
	}
	return &Verifier{resources: newResources(ledger, broker, options)}, nil
}

// Run judges messages until ctx ends. Then it drains: it forwards and acks the judged messages,
// hands back the rest, and returns nil, or an error that wraps ErrNotDrained.
//
// Run first drops the pool's broken idle connections; after a restart of the database all are
// broken. Then it proves that the database makes a lookup wait (proof.Prove), declares the queues
// and connects. If one of these steps fails, it returns the error and has judged nothing:
// bridge.ErrProof, bridge.ErrOtherInstance, bridge.ErrNoSchema, bridge.ErrNotPrimary,
// bridge.ErrReadOnly, bridge.ErrOtherLedger, bridge.ErrCredentials, bridge.ErrUnavailable or a
// *bridge.QueueMismatch. But while the database or the broker is at its limit of connections, Run
// retries: connections that have just been closed may still count. After a successful start it does
// not give up. On any error it logs the reason, ends the session, so that every unacked message is
// redelivered, and starts another one with backoff, including the proof.
func (v *Verifier) Run(ctx context.Context) error {
	v.current.stop(false)
	defer context.AfterFunc(ctx, func() { v.current.stop(true) })()
	s, err := v.start(ctx)
	if err != nil && ctx.Err() == nil && !atConnectionLimit(err) {
		v.noteEnd(err)
		return err
	}
	usual, otherInstance := pipe.NewBackOff(100*time.Millisecond, 3*time.Second), pipe.NewBackOff(time.Second, 30*time.Second)
	for {
		if s != nil {
			began := time.Now()
			v.current.begin(s, began)
			err = s.run(ctx)
			v.remembered = s.forwarder.Remember(time.Now())
			if time.Since(began) > usual.MaxInterval {
				usual.Reset()
			}
		}
		pauses := otherInstance // two servers answer, so each session would end soon, and cause duplicates
		if !errors.Is(err, bridge.ErrOtherInstance) {
			pauses = usual
			otherInstance.Reset()
		}
		if ctx.Err() != nil {
			return v.stopped(s, err)
		}
		v.noteEnd(err)
		pause, text := pauses.NextBackOff(), "session ended"
		if s == nil {
			text = "no session"
		}
		v.log.Warn(text, "error", err, "retry_in", pause)
		stopForget := func() {}
		if !errors.As(err, new(databaseError)) { // the last proof still holds
			stopForget = v.retryForget(ctx)
		}
		pipe.Pause(ctx, pause)
		if errors.Is(err, bridge.ErrOtherInstance) { // the idle connections would go on leading to both servers
			_, _ = inTime(ctx, v.calls.prove, askPatience, func(ctx context.Context) (struct{}, error) {
				closeIdle(ctx, v.ledger.DB())
				return struct{}{}, nil
			})
		}
		s, err = v.start(ctx)
		stopForget()
	}
}

// A databaseError is the error of a lookup or of the proof. Another server may answer next, so no
// row is deleted before the next proof.
type databaseError struct{ error }

func (e databaseError) Unwrap() error { return e.error }

func ofDatabase(err error) error {
	if err == nil {
		return nil
	}
	return databaseError{err}
}

// retryForget deletes the remaining rows of delivered messages between sessions, until stop is called.
// Otherwise other verifiers may stage such messages again. A redelivered message of a deleted row is
// dropped.
func (v *Verifier) retryForget(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { v.jobs.forget.Run(ctx, v.forgetter.retry) })
	return func() {
		cancel()
		running.Wait()
	}
}

// atConnectionLimit reports whether the database or the broker opens no further connection now.
func atConnectionLimit(err error) bool {
	return errors.Is(err, driver.ErrNoConnection) || errors.Is(err, bridge.ErrConnectionLimit)
}

// stopped ends Run. Without a session there was no message to drain.
func (v *Verifier) stopped(s *session, err error) error {
	v.current.end(err)
	v.forgetter.tryLast()
	if s != nil && err != nil {
		v.log.Warn("verifier stopped before draining; unacked messages are requeued", "queue", v.opts.Topology.Queue, "error", err)
		return fmt.Errorf("stop verifier: %w: %w", ErrNotDrained, err)
	}
	v.log.Info("verifier stopped", "queue", v.opts.Topology.Queue)
	return nil
}

// start makes a session, or returns why it cannot.
func (v *Verifier) start(ctx context.Context) (*session, error) {
	proven, err := v.prove(ctx)
	if err != nil {
		return nil, fmt.Errorf("start verifier: %w", ofDatabase(err))
	}
	if reason := v.ledger.FellBack(); reason != nil {
		v.fellBack.Do(func() {
			v.log.Warn("waiting lookup failed the proof; using its fallback", "ledger", v.ledger.Identity().String(), "reason", reason)
		})
	}
	s, err := openSession(ctx, v.resources, proven, v.remembered, v.unclaimed)
	if err != nil {
		return nil, fmt.Errorf("start verifier: %w", err)
	}
	v.stats.sessions.Add(1)
	v.log.Info("session started", "queue", v.opts.Topology.Queue, "ledger", v.ledger.Identity().String(), "instance", string(proven.Instance()))
	return s, nil
}

// noteEnd notes the end of a session, or of an attempt to start one.
func (v *Verifier) noteEnd(err error) {
	v.current.end(err)
	if v.opts.Observer != nil {
		v.jobs.observe.Do(func() { v.opts.Observer.SessionEnded(err) })
	}
}

// State returns the verifier's present state. It looks at every waiting message, so do not call it
// for each message.
func (v *Verifier) State() State {
	s, state := v.current.get()
	state.Undeleted, state.DeleteErr = v.forgetter.count(), v.forgetter.failure()
	if s != nil {
		s.describe(&state)
	}
	return state
}

// Stats returns the counts, for people and metrics. Only the broker and the ledger show the state of a
// message.
func (v *Verifier) Stats() Stats { return v.stats.read() }

const (
	// provePatience bounds prove: askPatience, 35 s for proof.Prove, and ledgerTimeout.
	provePatience = 75 * time.Second
	// proveEnd is how long a proof may continue when the verifier stops: it deletes its canaries.
	proveEnd = 6 * time.Second
	// provesAtOnce bounds the proofs that hang in a statement. The next one may succeed on another
	// connection.
	provesAtOnce = 3
)

// prove runs all checks of the database that a session needs before it begins. It returns within
// provePatience, even if the driver ignores the contexts of its calls.
func (v *Verifier) prove(ctx context.Context) (*proof.Proven, error) {
	waiting, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	defer context.AfterFunc(ctx, func() {
		end := time.AfterFunc(proveEnd, func() { stop(context.Cause(ctx)) })
		context.AfterFunc(waiting, func() { end.Stop() })
	})()
	proven, err := inTime(waiting, v.calls.prove, provePatience, func(context.Context) (*proof.Proven, error) {
		dropBroken(ctx, v.ledger.DB())
		proven, err := proof.Prove(ctx, v.ledger)
		if err != nil {
			return nil, err
		}
		return proven, v.mayReadWatermark(ctx)
	})
	if errors.Is(err, errNoAnswer) {
		err = fmt.Errorf("prove within %v that a lookup waits: %w", provePatience, err)
	}
	return proven, err
}

// unclaimed logs once that verifiers of another ledger are not kept from the queue.
func (v *Verifier) unclaimed(err error) {
	v.noClaim.Do(func() {
		v.log.Info("cannot keep verifiers of another ledger from the queue; the login needs the rights to configure and read the ledger queue, which is a classic queue",
			"queue", v.opts.Topology.Queue, "ledger_queue", v.opts.Topology.LedgerQueue(), "error", err)
	})
}

// mayReadWatermark checks the right to read the sweep's watermark. Without the right, a session would
// begin well and then end at the first old message.
func (v *Verifier) mayReadWatermark(ctx context.Context) error {
	if !v.ledger.Features().Sweeps {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	if _, err := v.ledger.SweptBefore(ctx); err != nil {
		return fmt.Errorf("read sweep's watermark: %w", err)
	}
	return nil
}

// askPatience bounds the checks of idle connections.
const askPatience = 5 * time.Second

// dropBroken pings every idle connection of the pool: database/sql closes a broken one. Some
// drivers report a broken connection only by the error of the next statement, so the proof would
// fail once for each. The proof reports faults of the database itself.
func dropBroken(ctx context.Context, db *sql.DB) {
	eachIdle(ctx, db, func(ctx context.Context, conn *sql.Conn) { _ = conn.PingContext(ctx) })
}

// closeIdle closes every idle connection of the pool.
func closeIdle(ctx context.Context, db *sql.DB) {
	eachIdle(ctx, db, func(_ context.Context, conn *sql.Conn) {
		_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	})
}

func eachIdle(ctx context.Context, db *sql.DB, do func(ctx context.Context, conn *sql.Conn)) {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	var idle []*sql.Conn
	for range db.Stats().Idle {
		conn, err := db.Conn(ctx)
		if err != nil {
			break
		}
		idle = append(idle, conn) // held, so that the next connection is another one
	}
	for _, conn := range idle {
		running.Go(func() {
			do(ctx, conn)
			_ = conn.Close()
		})
	}
}
