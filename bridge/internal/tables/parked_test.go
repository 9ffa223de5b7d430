package tables_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

func TestParkChunksAreAllMessagesInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		messages := make([]driver.Parked, rapid.IntRange(1, 2500).Draw(t, "messages"))
		for i := range messages {
			messages[i].ID = uuid.UUID{byte(i >> 8), byte(i)}
		}
		for range rapid.IntRange(0, 5).Draw(t, "large") {
			at := rapid.IntRange(0, len(messages)-1).Draw(t, "at")
			messages[at].Message = make([]byte, rapid.IntRange(0, 2<<20).Draw(t, "size"))
		}
		n := 0
		for chunk := range tables.ParkChunks(messages) {
			bytes := 0
			for _, m := range chunk {
				if m.ID != messages[n].ID {
					t.Fatalf("message %d is another", n)
				}
				bytes += len(m.Message)
				n++
			}
			if len(chunk) > tables.Chunk || bytes > 1<<20 && len(chunk) > 1 || len(chunk) == 0 {
				t.Fatalf("a chunk of %d messages and %d bytes", len(chunk), bytes)
			}
		}
		if n != len(messages) {
			t.Fatalf("%d of %d messages", n, len(messages))
		}
	})
}

// A hanging shelf has one message, and waits for ever to change its row.
type hanging struct{ tables.Shelf }

func (hanging) Take(context.Context, uuid.UUID, int) ([]tables.Size, error) {
	return []tables.Size{{}}, nil
}

func (hanging) Recorded(_ context.Context, ids []uuid.UUID) ([]uuid.UUID, error) { return ids, nil }

func (hanging) Load(context.Context, []uuid.UUID) ([]driver.Parked, error) {
	return []driver.Parked{{}}, nil
}

func (hanging) Touch(ctx context.Context, _ []uuid.UUID) ([]uuid.UUID, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hanging) Rollback() error { return nil }

func TestTheStageOfAnUnparkAndWhatFollowsItAreBounded(t *testing.T) {
	for name, stage := range map[string]func(context.Context, []driver.Parked) error{
		"the stage": func(ctx context.Context, _ []driver.Parked) error {
			<-ctx.Done()
			return context.Cause(ctx)
		},
		"what follows it": func(context.Context, []driver.Parked) error { return nil },
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			open := func(context.Context) (tables.Shelf, error) { return hanging{}, nil }
			_, err := tables.Unpark(t.Context(), open, uuid.Nil, 1, stage)
			if took := time.Since(start); err == nil || name == "the stage" && took != driver.UnparkPatience || took > time.Hour {
				t.Errorf("%s ends after %v: %v", name, took, err)
			}
		})
	}
}

// A sweep that fails in the middle returns what is gone, and the watermark covers it.
func TestSweepReturnsWhatItHasRemoved(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	orphans := make([]driver.Orphan, tables.Chunk+1)
	for i := range orphans {
		orphans[i] = driver.Orphan{ID: uuid.New(), RecordedAt: start.Add(time.Duration(i) * time.Second)}
	}
	failure := errors.New("no database")
	var raised time.Time
	sweep := tables.Sweep{
		Most: tables.Chunk,
		List: func(context.Context, time.Duration, int) ([]driver.Orphan, error) { return orphans, nil },
		Raise: func(_ context.Context, before time.Time) error {
			raised = before
			return nil
		},
		Remove: func(_ context.Context, ids []uuid.UUID, before time.Time) ([]uuid.UUID, error) {
			if !before.Equal(raised) {
				t.Errorf("removes before %v, the watermark is %v", before, raised)
			}
			if len(ids) < tables.Chunk {
				return nil, failure
			}
			return ids[1:], nil
		},
		Tick: time.Second,
	}
	swept, err := sweep.Run(t.Context(), driver.MinSweepAge, 5000)
	if !errors.Is(err, failure) || !slices.Equal(swept, orphans[1:tables.Chunk]) {
		t.Errorf("swept are %d, %v", len(swept), err)
	}
	if last := orphans[tables.Chunk].RecordedAt; !raised.After(last) {
		t.Errorf("the watermark is %v, the youngest row %v", raised, last)
	}
}
