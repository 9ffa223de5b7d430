package verifier

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestATransactionIsNamedAgainAfterTwiceAsLong(t *testing.T) {
	var reported reportedHolders
	start := time.Now()
	at := func(d time.Duration, h inspect.Holder) bool {
		return reported.due(h, uuid.UUID{}, start.Add(d), time.Second)
	}
	one, another := inspect.Holder{Session: "1", Since: start}, inspect.Holder{Session: "2", Since: start}
	var got []time.Duration
	for d := time.Duration(0); d < 20*time.Second; d += 500 * time.Millisecond {
		if at(d, one) {
			got = append(got, d/time.Second)
		}
	}
	if want := []time.Duration{0, 1, 3, 7, 15}; !slices.Equal(got, want) {
		t.Fatalf("named at %v s, want %v", got, want)
	}
	if !at(16*time.Second, another) {
		t.Error("another transaction is not named")
	}
	if later := (inspect.Holder{Session: "1", Since: start.Add(time.Hour)}); !at(16*time.Second, later) {
		t.Error("a later transaction of the same session is not named")
	}
	for i := range 3 * explainLimit {
		at(0, inspect.Holder{Since: start.Add(time.Duration(i))})
	}
	if len(reported) > explainLimit {
		t.Errorf("%d are remembered", len(reported))
	}
}

// held is a Watcher that reports one transaction, for which a message waits.
type held struct {
	holder inspect.Holder
	open   atomic.Bool
}

func (h *held) Holders(context.Context, uuid.UUID) ([]inspect.Holder, error) {
	if !h.open.Load() {
		return nil, nil
	}
	return []inspect.Holder{h.holder}, nil
}

func (h *held) OpenTransactions(context.Context, time.Duration, int) ([]inspect.Holder, error) {
	return nil, nil
}

func TestATransactionIsNamedWhenItsTimeHasComeAndWhenItIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const after, began, ends = 4 * time.Second, 100 * time.Millisecond, 6 * time.Second
		var log servertest.Log
		start, watcher := time.Now(), &held{holder: inspect.Holder{Session: "7", Login: "shop"}}
		watcher.open.Store(true)
		logger := slog.New(slog.NewTextHandler(&log, nil))
		s := testSession(&resources{opts: Options{Watcher: watcher, ExplainAfter: after}, log: logger, jobs: newSideJobs(logger), calls: newSideCalls()})
		ctx, stop := context.WithCancel(t.Context())
		go s.explain(ctx)
		time.Sleep(began)
		m := &message{received: time.Now(), staged: wire.Staged{Message: bridge.Message{ID: uuid.New()}}}
		s.room.enter(false, m)

		time.Sleep(after)
		synctest.Wait()
		if said := log.String(); !strings.Contains(said, `msg="a message waits for an open transaction"`) || !strings.Contains(said, "waited=4s waiting=1 session=7 login=shop hint=") {
			t.Errorf("after %v the log says %q", time.Since(start), said)
		}
		s.room.removeMessages(func(*message) bool { return true }) // set aside
		time.Sleep(ends)
		synctest.Wait()
		const over = "no longer waits"
		if strings.Contains(log.String(), over) {
			t.Error("an open transaction counts as over")
		}
		watcher.open.Store(false)
		time.Sleep(ends)
		synctest.Wait()
		if n := strings.Count(log.String(), over); n != 1 {
			t.Errorf("it is said %d times that it is over: %s", n, log.String())
		}
		stop()
		synctest.Wait()
	})
}

func TestTheLogLeavesOutFactsThatTheLoginDoesNotSee(t *testing.T) {
	since := time.Now()
	for _, c := range []struct {
		holder inspect.Holder
		want   int
		hint   bool
	}{
		{inspect.Holder{Session: "7", Login: "shop", Program: "shop", Host: "h", State: "idle", Since: since, Statement: "INSERT"}, 7, false},
		{inspect.Holder{Session: "prepared x", Login: "shop", State: "prepared", Since: since}, 4, false},
		{inspect.Holder{Session: "7", Login: "shop"}, 3, true},
	} {
		if got := attributesOf(c.holder); len(got) != 2*c.want || (got[len(got)-2] == "hint") != c.hint {
			t.Errorf("%+v is logged as %v", c.holder, got)
		}
	}
}
