package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/endpoints"
	"github.com/twoqueue/twoqueue/cmd/internal/environment"
	"github.com/twoqueue/twoqueue/verifier"
)

// What the documents say of connections, to who counts them, is a limit.
func TestTheConnectionsAreNoMoreThanTheDocumentsSay(t *testing.T) {
	minimal(t)
	url := "sqlite:" + filepath.Join(t.TempDir(), "ledger.db")
	db, err := database.Create(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.MigrateLedger(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := load(false)
	if err != nil {
		t.Fatal(err)
	}
	c.Database.URL = url // the broker is away
	w := &worker{config: c, log: c.Log.Logger(t.Output())}
	if err := w.verify(t.Context(), nil); !errors.Is(err, bridge.ErrUnavailable) {
		t.Fatalf("it ends with %v", err)
	}
	defer w.db.Close()
	if most, want := w.db.Stats().MaxOpenConnections, new(verifier.Options).Connections()+ownConnections; most != want {
		t.Errorf("the pool allows %d connections, must allow %d", most, want)
	}
}

func TestADatabaseThatIsAwayIsToldOnceAndOnThePage(t *testing.T) {
	var log bytes.Buffer
	w := &worker{log: slog.New(slog.NewTextHandler(&log, nil)), stopping: make(chan struct{})}
	page, running := newStatus(w), verifier.State{Session: time.Now()}
	away := errors.New("check ledger: away")
	for i, c := range []struct {
		err   error
		phase string
		lines int
	}{
		{nil, "running", 0}, {away, "failing", 1}, {away, "failing", 1}, {nil, "running", 2}, {nil, "running", 2},
	} {
		w.checked(c.err)
		if phase := page.phase(running); phase != c.phase {
			t.Errorf("%d: it is %s, not %s", i, phase, c.phase)
		}
		if n := strings.Count(log.String(), "\n"); n != c.lines {
			t.Errorf("%d: %d lines, not %d: %s", i, n, c.lines, log.String())
		}
	}
}

func TestATakenAddressIsNamedByItsVariable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := &worker{log: slog.New(slog.NewTextHandler(&log, nil))}
		defer w.serve(t.Context(), "endpoints", "BRIDGE_HTTP_ADDR", ":1", func(context.Context, string) (*endpoints.Server, error) {
			return nil, endpoints.ErrAddress
		})()
		synctest.Wait()
		if want := `job=endpoints error="BRIDGE_HTTP_ADDR: address not usable"`; !strings.Contains(log.String(), want) {
			t.Errorf("the log says %s, not %s", log.String(), want)
		}
	})
}

// A database that is silent for as long as we wait is told; one that is not waited for is not.
func TestADatabaseThatDoesNotAnswerInTimeIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &worker{log: slog.New(slog.DiscardHandler)}
		w.parts.Store(&parts{ledger: &database.Ledger{Ledger: silent{}}})
		stopping, stop := context.WithCancel(t.Context())
		stop()
		if err := w.check(stopping); err == nil {
			t.Fatal("a silent database has answered")
		}
		if asked, _ := w.lastCheck(); asked {
			t.Error("it is said to have answered who did not wait")
		}
		if err := w.check(t.Context()); err == nil {
			t.Fatal("a silent database has answered")
		}
		if asked, err := w.lastCheck(); !asked || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %s: asked %t, error %v", checkPatience, asked, err)
		}
	})
}

// Also without endpoints: nothing else tells that the database is away while nothing is staged.
func TestADatabaseThatIsAwayMakesOneLineInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, metrics := range map[string]func(*worker) *metrics{"with metrics": newMetrics, "without": func(*worker) *metrics { return nil }} {
			var log bytes.Buffer
			w := &worker{log: slog.New(slog.NewTextHandler(&log, nil)), started: make(chan struct{})}
			w.parts.Store(&parts{ledger: &database.Ledger{Ledger: silent{}}})
			close(w.started)
			stop := start(t.Context(), func(ctx context.Context) { w.sample(ctx, metrics(w)) })
			time.Sleep(time.Minute)
			stop()
			if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "does not answer as a ledger") {
				t.Errorf("%s: the log says %s", name, text)
			}
		}
	})
}

func TestACountThatFailsIsNotMendedByADatabaseThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := &worker{log: slog.New(slog.NewTextHandler(&log, nil)), started: make(chan struct{})}
		w.config.SampleInterval = environment.Span(30 * time.Second)
		w.parts.Store(&parts{ledger: &database.Ledger{Ledger: &uncountable{}}})
		close(w.started)
		stop := start(t.Context(), func(ctx context.Context) { w.sample(ctx, newMetrics(w)) })
		time.Sleep(5 * time.Minute)
		stop()
		if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "side job fails") || strings.Contains(text, "works again") {
			t.Errorf("the log says %s", text)
		}
	})
}

// uncountable is a ledger that is there the first time, and may not be counted.
type uncountable struct {
	driver.Ledger
	asked bool
}

func (u *uncountable) Check(context.Context) (err error) {
	if u.asked {
		err = errors.New("away")
	}
	u.asked = true
	return err
}

func (*uncountable) Features() driver.Features { return driver.Features{Carries: true} }

func (*uncountable) Due(context.Context, driver.DueRow, int) ([]driver.DueRow, time.Time, error) {
	return nil, time.Time{}, errors.New("denied")
}

// silent is a ledger that does not answer.
type silent struct{ driver.Ledger }

func (silent) Check(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}
