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

// A shelf is a tables.Shelf in memory, of which other sessions have forgotten and
// locked some rows.
type shelf struct {
	ctx              context.Context
	sizes            []tables.Size
	forgotten        map[uuid.UUID]bool // before the stage
	forgottenSince   map[uuid.UUID]bool // while it was staged
	locked           map[uuid.UUID]bool
	staged           bool
	touched, removed []uuid.UUID
	committed        bool
}

func (s *shelf) Take(_ context.Context, _ uuid.UUID, limit int) ([]tables.Size, error) {
	return s.sizes[:min(limit, len(s.sizes))], nil
}

func (s *shelf) Recorded(_ context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	return slices.DeleteFunc(slices.Clone(ids), func(id uuid.UUID) bool {
		return s.forgotten[id] || s.staged && s.forgottenSince[id]
	}), nil
}

func (s *shelf) Load(_ context.Context, ids []uuid.UUID) ([]driver.Parked, error) {
	messages := make([]driver.Parked, len(ids))
	for i, id := range ids {
		messages[i].ID = id
	}
	return messages, nil
}

func (s *shelf) Touch(_ context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	s.touched = slices.DeleteFunc(slices.Clone(ids), func(id uuid.UUID) bool { return s.locked[id] })
	return s.touched, nil
}

func (s *shelf) Remove(_ context.Context, ids []uuid.UUID) (int, error) {
	s.removed = ids
	return len(ids), nil
}

func (s *shelf) Commit() error {
	s.committed = s.ctx.Err() == nil
	return s.ctx.Err()
}

func (s *shelf) Rollback() error { return nil }

func (s *shelf) open(ctx context.Context) (tables.Shelf, error) {
	s.ctx = ctx
	return s, nil
}

// Whatever others do meanwhile: what is removed was staged and has a row that was set
// to now, or has no row any more; and memory is bounded.
func TestUnparkRemovesOnlyWhatIsSafe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &shelf{forgotten: map[uuid.UUID]bool{}, forgottenSince: map[uuid.UUID]bool{}, locked: map[uuid.UUID]bool{}}
		for range rapid.IntRange(0, 20).Draw(t, "parked") {
			id := uuid.New()
			size := rapid.Int64Range(0, driver.UnparkBytes*3/2).Draw(t, "size")
			s.sizes = append(s.sizes, tables.Size{ID: id, Size: size})
			for _, set := range []map[uuid.UUID]bool{s.forgotten, s.forgottenSince, s.locked} {
				set[id] = rapid.Bool().Draw(t, "so")
			}
		}
		limit := rapid.IntRange(1, 25).Draw(t, "limit")
		fails := rapid.Bool().Draw(t, "fails")
		var staged []uuid.UUID
		removed, err := tables.Unpark(t.Context(), s.open, uuid.Nil, limit, func(_ context.Context, messages []driver.Parked) error {
			if s.staged || len(messages) == 0 {
				t.Fatalf("staged twice, or nothing: %d", len(messages))
			}
			s.staged = true
			for _, m := range messages {
				staged = append(staged, m.ID)
			}
			if fails {
				return errors.New("no broker")
			}
			return nil
		})
		if fails && s.staged {
			if err == nil || removed != 0 || s.committed {
				t.Fatalf("after a stage that failed: %d, %v, committed %t", removed, err, s.committed)
			}
			return
		}
		if err != nil || removed != len(s.removed) {
			t.Fatalf("%d, %v", removed, err)
		}
		if len(s.sizes) > 0 && !s.committed {
			t.Fatal("it is not committed")
		}
		var bytes int64
		for _, size := range s.sizes {
			if slices.Contains(staged, size.ID) {
				bytes += size.Size
			}
		}
		if bytes > driver.UnparkBytes && len(staged) > 1 || len(staged) > limit {
			t.Fatalf("%d bytes in %d messages", bytes, len(staged))
		}
		for _, id := range s.removed {
			gone := s.forgotten[id] || s.forgottenSince[id] && s.staged
			if !gone && (!slices.Contains(staged, id) || !slices.Contains(s.touched, id)) {
				t.Fatalf("%s is removed, staged %t", id, slices.Contains(staged, id))
			}
		}
		for _, id := range staged {
			if !slices.Contains(s.removed, id) && !s.locked[id] {
				t.Fatalf("%s stays parked", id)
			}
		}
	})
}

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

func TestUnparkGivesTheStageItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{sizes: []tables.Size{{ID: uuid.New()}}}
		start := time.Now()
		_, err := tables.Unpark(t.Context(), s.open, uuid.Nil, 1, func(ctx context.Context, _ []driver.Parked) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if took := time.Since(start); err == nil || took != driver.UnparkPatience {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

func TestWhatFollowsTheStageIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &hanging{shelf{sizes: []tables.Size{{ID: uuid.New()}}}}
		open := func(ctx context.Context) (tables.Shelf, error) { return s, nil }
		_, err := tables.Unpark(t.Context(), open, uuid.Nil, 1, func(context.Context, []driver.Parked) error { return nil })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the error is %v", err)
		}
	})
}

// A hanging shelf waits for ever.
type hanging struct{ shelf }

func (*hanging) Touch(ctx context.Context, _ []uuid.UUID) ([]uuid.UUID, error) {
	<-ctx.Done()
	return nil, ctx.Err()
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
