package ops

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/verifier"
	"github.com/twoqueue/twoqueue/verifier/sidejob"
)

func monitor(t *testing.T, of *verifier.Options, opts *Options) *Monitor {
	t.Helper()
	m, err := New(of, opts)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestAMissingDatabaseIsLoggedOnceAndShownOnThePage(t *testing.T) {
	var log bytes.Buffer
	m := monitor(t, &verifier.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, nil)
	running := verifier.State{Session: time.Now()}
	away := errors.New("check ledger: away")
	for i, c := range []struct {
		err   error
		phase string
		lines int
	}{
		{nil, "running", 0}, {away, "failing", 1}, {away, "failing", 1}, {nil, "running", 2}, {nil, "running", 2},
	} {
		m.checked(c.err)
		if phase := m.status.phase(running); phase != c.phase {
			t.Errorf("%d: it is %s, not %s", i, phase, c.phase)
		}
		if n := strings.Count(log.String(), "\n"); n != c.lines {
			t.Errorf("%d: %d lines, not %d: %s", i, n, c.lines, log.String())
		}
	}
}

// watches returns a monitor of a verifier with a ledger. The verifier does not run.
func watches(t *testing.T, log *bytes.Buffer, ledger driver.Ledger) *Monitor {
	t.Helper()
	broker, err := bridge.NewBroker("amqp://127.0.0.1:1/", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	options := &verifier.Options{Logger: slog.New(slog.NewTextHandler(log, nil))}
	v, err := verifier.New(ledger, broker, options)
	if err != nil {
		t.Fatal(err)
	}
	m := monitor(t, options, nil)
	m.watched.Store(&watched{v, ledger, nil, nil})
	return m
}

// The answer counts as missing if the monitor's time is over, not if the caller has gone.
func TestADatabaseThatDoesNotAnswerInTimeIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(callLimit * checkPatience) // the calls end
		m := watches(t, new(bytes.Buffer), silent{})
		gone, leave := context.WithCancel(t.Context())
		leave()
		if err := m.check(gone, m.watched.Load()); err == nil {
			t.Fatal("a silent database has answered")
		}
		if asked, _ := m.lastCheck(); asked {
			t.Error("the answer counts although the caller has gone")
		}
		if err := m.check(t.Context(), m.watched.Load()); err == nil {
			t.Fatal("a silent database has answered")
		}
		if asked, err := m.lastCheck(); !asked || !errors.Is(err, sidejob.ErrNoAnswer) {
			t.Errorf("after %s: asked %t, error %v", checkPatience, asked, err)
		}
	})
}

// A probe during a check of the samples gets the answer of that check.
func TestASlowCheckAnswersAllProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := watches(t, new(bytes.Buffer), slow{})
		answers := make(chan error, 2)
		for range 2 {
			go func() { answers <- m.check(t.Context(), m.watched.Load()) }()
			time.Sleep(time.Second / 10)
		}
		for range 2 {
			if err := <-answers; err != nil {
				t.Error(err)
			}
		}
	})
}

// While no message is staged, only the check shows that the database is unavailable.
func TestADatabaseThatIsAwayMakesOneLineInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(callLimit * checkPatience) // the calls end
		var log bytes.Buffer
		m := watches(t, &log, silent{})
		stop := start(t.Context(), m.sample)
		time.Sleep(time.Minute)
		stop()
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "does not answer as a ledger") {
			t.Errorf("the log says %s", text)
		}
	})
}

func TestACountThatFailsDoesNotWorkAgainSinceTheDatabaseIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		m := watches(t, &log, &uncountable{})
		stop := start(t.Context(), m.sample)
		time.Sleep(5 * time.Minute)
		stop()
		if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "side job fails") || strings.Contains(text, "works again") {
			t.Errorf("the log says %s", text)
		}
	})
}

// A driver may ignore the context of a call. Neither probes, nor a scrape, nor the page, nor the
// end of Run wait for it, and the hanging calls use no more than Connections.
func TestADriverThatHangsHoldsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger := &hanging{release: make(chan struct{})}
		defer close(ledger.release)
		m := watches(t, new(bytes.Buffer), ledger)
		of := m.watched.Load()
		ended, page, probes := start(t.Context(), func(ctx context.Context) { m.Run(ctx, of.verifier, ledger, ledger, nil) }), m.Status(), m.Probes(nil)
		for _, checks := range []bool{false, true} { // the counts and the page hang first, then the checks
			ledger.checks.Store(checks)
			for range 3 {
				for path, handler := range map[string]http.Handler{"/readyz": probes, "/metrics": probes, "/status.json": page} {
					began := time.Now()
					request := httptest.NewRequest(http.MethodGet, path, nil)
					request.Host = "localhost"
					answer := httptest.NewRecorder()
					handler.ServeHTTP(answer, request)
					if took := time.Since(began); took > 3*time.Second || path == "/metrics" && took > 0 {
						t.Errorf("%s took %s", path, took)
					}
					if want := map[string]int{"/readyz": 503}[path]; answer.Code != max(want, 200) {
						t.Errorf("%s: %d", path, answer.Code)
					}
				}
				time.Sleep(time.Minute)
			}
		}
		if n := ledger.calls.Load(); n != Connections {
			t.Errorf("%d calls hang, of at most %d", n, Connections)
		}
		began := time.Now()
		ended()
		if took := time.Since(began); took > 0 {
			t.Errorf("Run ended after %s", took)
		}
	})
}

// start runs a function that ends with its context, until stop is called.
func start(ctx context.Context, run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// noLedger has the features that verifier.New reads.
type noLedger struct{ driver.Ledger }

func (noLedger) Features() driver.Features { return driver.Features{Carries: true, Sweeps: true} }
func (noLedger) DB() *sql.DB               { return new(sql.DB) }
func (noLedger) Identity() uuid.UUID       { return uuid.Nil }

// uncountable is a ledger that passes the first check, and refuses counts.
type uncountable struct {
	noLedger
	asked bool
}

func (u *uncountable) Check(context.Context) (err error) {
	if u.asked {
		err = errors.New("away")
	}
	u.asked = true
	return err
}

func (*uncountable) Due(context.Context, driver.DueRow, int) ([]driver.DueRow, time.Time, error) {
	return nil, time.Time{}, errors.New("denied")
}

// silent is a ledger that does not answer.
type silent struct{ noLedger }

func (silent) Check(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// slow is a ledger that answers nearly too late.
type slow struct{ noLedger }

func (slow) Check(context.Context) error {
	time.Sleep(checkPatience * 9 / 10)
	return nil
}

// hanging is a ledger whose driver ignores contexts.
type hanging struct {
	noLedger
	checks  atomic.Bool // the checks hang too
	calls   atomic.Int32
	release chan struct{}
}

func (h *hanging) hang() {
	h.calls.Add(1)
	<-h.release
}

func (h *hanging) Check(context.Context) error {
	if h.checks.Load() {
		h.hang()
	}
	return nil
}

func (h *hanging) Due(context.Context, driver.DueRow, int) ([]driver.DueRow, time.Time, error) {
	h.hang()
	return nil, time.Time{}, nil
}

func (h *hanging) Orphans(context.Context, time.Duration, int) ([]driver.Orphan, error) {
	h.hang()
	return nil, nil
}

func (h *hanging) OpenTransactions(context.Context, time.Duration, int) ([]inspect.Holder, error) {
	h.hang()
	return nil, nil
}

func (h *hanging) Holders(context.Context, uuid.UUID) ([]inspect.Holder, error) { return nil, nil }
