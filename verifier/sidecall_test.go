package verifier

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/verifier/internal/consume"
)

// Some calls of a hangingLedger do not return, whatever their contexts say.
type hangingLedger struct {
	*carryingWorld
	due, claim, touch bool // the calls that hang
	hanging           atomic.Int32
	release           chan struct{}
}

func (l *hangingLedger) hang(hangs bool) {
	if hangs {
		l.hanging.Add(1)
		<-l.release
	}
}

func (l *hangingLedger) Due(ctx context.Context, after driver.DueRow, limit int) ([]driver.DueRow, time.Time, error) {
	l.hang(l.due)
	return l.carryingWorld.Due(ctx, after, limit)
}

func (l *hangingLedger) Claim(ctx context.Context, rows []driver.DueRow) ([]driver.Carried, error) {
	l.hang(l.claim)
	return l.carryingWorld.Claim(ctx, rows)
}

func (l *hangingLedger) Touch(ctx context.Context, ids []uuid.UUID) error {
	l.hang(l.touch)
	return l.carryingWorld.Touch(ctx, ids)
}

// Nothing waits for a hanging call of a side job: no marker, no message that is set aside, and no
// end of a session. Later sessions of the verifier begin no second call.
func TestACallOfASideJobThatHangsHoldsNothingUp(t *testing.T) {
	for name, ledger := range map[string]*hangingLedger{
		"due": {due: true}, "claim": {claim: true}, "touch": {touch: true},
	} {
		t.Run(name, func(t *testing.T) {
			inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
				ledger.carryingWorld, ledger.release = w, make(chan struct{})
				defer close(ledger.release)
				w.commits(3, false, nil)
				w.commits(3, true, nil)
				toucher, running := newToucher(ledger), newSideCall()
				for range 3 {
					s := w.session(ledger, running)
					s.toucher = toucher
					ctx, cancel := context.WithCancel(t.Context())
					var ended atomic.Int32
					for _, job := range []func(context.Context){s.stageAgain, s.touchHeld, func(ctx context.Context) { _ = s.touchAndSetAside(ctx) }} {
						go func() {
							job(ctx)
							ended.Add(1)
						}()
					}
					long, aside := s.delivered(s.staging, uuid.New()), s.delivered(s.staging, uuid.New())
					s.committed(long, aside)
					time.Sleep(dueIdle)
					unsent(s)
					s.setAside(aside)
					var markers []*consume.Unacked
					for _, c := range []*consume.Consumer{s.staging, s.waiting} {
						markers = append(markers, s.brings(c, w.marker()))
					}
					time.Sleep(2 * touchPatience)
					synctest.Wait()
					if n := len(unsent(s)); n != 1 {
						t.Error("a message waits to be set aside")
					}
					time.Sleep(markerPatience + 5*time.Second)
					synctest.Wait()
					for i, m := range markers {
						if !m.IsAcked() && !m.IsHandedBack() {
							t.Errorf("marker %d is neither acked nor handed back", i)
						}
					}
					cancel()
					synctest.Wait()
					if n := ended.Load(); n != 3 {
						t.Errorf("%d jobs of 3 end with their session", n)
					}
				}
				if n := ledger.hanging.Load(); n != 1 {
					t.Errorf("%d calls hang", n)
				}
			})
		})
	}
}

// When the call has returned, the job goes on.
func TestASideCallGoesOnAfterOneThatWasSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running := newSideCall()
		call := func(takes, patience time.Duration) error {
			_, err := inTime(t.Context(), running, patience, func(context.Context) (int, error) {
				time.Sleep(takes)
				return 0, nil
			})
			return err
		}
		if err := call(time.Minute, time.Second); !errors.Is(err, errNoAnswer) {
			t.Errorf("a slow one: %v", err)
		}
		if err := call(0, time.Minute); !errors.Is(err, errNoAnswer) {
			t.Errorf("while it runs: %v", err)
		}
		time.Sleep(time.Minute)
		if err := call(time.Second, time.Minute); err != nil {
			t.Errorf("after it: %v", err)
		}
		_, err := inTime(t.Context(), running, time.Second, func(context.Context) (int, error) { panic("a fault") })
		if err == nil {
			t.Error("a panic is no error")
		}
		if err := call(0, time.Second); err != nil {
			t.Errorf("after a panic: %v", err)
		}
	})
}

// Job.Run goes on after a panic, so a panic must not lose the markers.
func TestAPanicLeavesNoMarkerUnacked(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		s := w.verifier()
		s.stager.queues.publish = func(context.Context, []bridge.Outgoing) error { panic("a fault") }
		s.stager.rows.undeleted = func() map[uuid.UUID]bool { panic("a fault") }
		w.commits(1, true, nil)
		w.wait(dueIdle + driver.PublishedGrace + seenBefore + moment)
		staging := s.brings(s.staging, w.marker())
		waiting := []amqp.Publishing{w.marker(), w.marker()}
		first, second := s.brings(s.waiting, waiting[0]), s.brings(s.waiting, waiting[1])
		w.wait(markerPatience)
		if !staging.IsHandedBack() {
			t.Error("a marker whose copy is not confirmed is not handed back")
		}
		if !first.IsAcked() || !second.IsAcked() {
			t.Error("a marker from the waiting queue is not acked")
		}
	})
}

// A hangingConnector opens no connection, and Connect does not return, whatever the context says.
type hangingConnector struct {
	sqldriver.Connector
	asked   atomic.Int32
	release chan struct{}
}

func (c *hangingConnector) Connect(context.Context) (sqldriver.Conn, error) {
	c.asked.Add(1)
	<-c.release
	return nil, errors.New("released")
}

// A pooledLedger is a ledger whose first statement needs a connection.
type pooledLedger struct {
	driver.Ledger
	db *sql.DB
}

func (l pooledLedger) DB() *sql.DB                     { return l.db }
func (l pooledLedger) Check(ctx context.Context) error { return l.db.PingContext(ctx) }
func (l pooledLedger) FallBack(error) bool             { return false }

// The start of a session fails in time and says why, a later proof may succeed, and a stop does not
// wait for the end of a statement.
func TestAProofThatHangsIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		connector := &hangingConnector{release: make(chan struct{})}
		db := sql.OpenDB(connector)
		defer db.Close()
		defer synctest.Wait()
		defer close(connector.release)
		v := &Verifier{resources: &resources{ledger: pooledLedger{db: db}, calls: newSideCalls()}}
		for n := range int32(provesAtOnce + 2) {
			began := time.Now()
			_, err := v.prove(t.Context())
			if took := time.Since(began); took > provePatience || !errors.Is(err, errNoAnswer) || errors.Is(err, bridge.ErrUnavailable) {
				t.Errorf("after %v: %v", took, err)
			}
			if hanging := connector.asked.Load(); hanging != min(n+1, provesAtOnce) {
				t.Errorf("after %d proofs %d hang", n+1, hanging)
			}
		}
		v.calls = newSideCalls()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		_, err := v.prove(ctx)
		if took := time.Since(began); took > 2*proveEnd || !errors.Is(err, context.Canceled) {
			t.Errorf("a stop has waited %v: %v", took, err)
		}
	})
}
