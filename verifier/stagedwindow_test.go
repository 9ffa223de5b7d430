package verifier

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// New messages of senders wait behind few that verifiers have staged, however many are due. When
// some have left the queue there is room for the next ones, the longest due first.
func TestABacklogIsStagedAsItIsForwarded(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		const all = 30_000
		var inOrder []uuid.UUID
		for range all / 100 {
			inOrder = append(inOrder, w.commits(100, false, nil)...)
			w.wait(time.Millisecond)
		}
		w.wait(10 * time.Minute)
		w.lookTakes = 5 * time.Millisecond
		w.verifier()
		began, rounds, seen := time.Now(), 0, 0
		place := make(map[uuid.UUID]int, all)
		for i, id := range inOrder {
			place[id] = i
		}
		for seen < all && time.Since(began) < time.Minute {
			w.wait(stageInterval)
			staged := w.staged() // they have left the queue
			if len(staged) > stagedLimit {
				t.Fatalf("%d messages are on their way, must be at most %d", len(staged), stagedLimit)
			}
			for id := range staged {
				if at := place[id]; at/100 > (seen+len(staged))/100 {
					t.Fatalf("message %d is staged among the first %d", at, seen+len(staged))
				}
				w.forget(id)
			}
			seen += len(staged)
			rounds++
		}
		// Each round has staged as many messages as there was room for.
		if took := time.Since(began); seen != all || took > 2*all/stagedLimit*stageInterval {
			t.Errorf("%d of %d are staged in %v", seen, all, took)
		}
	})
}

// A look that takes long is not repeated for long. While a backlog is staged, the marker for lost
// messages does not wait for it.
func TestALostMessageAmidABacklogWaitsForNoLook(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		lost := w.commits(1, true, nil)[0]
		w.wait(time.Minute)
		w.commits(10*stagedLimit, false, nil)
		w.wait(time.Minute)
		w.lookTakes = 200 * time.Millisecond // the next look comes after ten seconds and more
		s := w.verifier()
		began := time.Now()
		for time.Since(began) < 8*time.Second {
			w.wait(stageInterval)
			w.passMarkers(s, s)
			staged := w.staged()
			if _, ok := staged[lost]; ok {
				return
			}
			for id := range staged {
				w.forget(id)
			}
		}
		t.Error("it is not staged")
	})
}

// While no message leaves the staging queue, few more are staged.
func TestNoMoreMessagesAreStagedThanLeave(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		ids := w.commits(10*stagedLimit, false, nil)
		s := w.verifier()
		w.wait(stagedPatience - time.Second)
		if n := s.stats.restaged.Load(); n != stagedLimit {
			t.Errorf("%d messages are staged, must be %d", n, stagedLimit)
		}
		// Another verifier has forwarded them.
		for _, id := range ids {
			if row := w.rows[id]; !row.Unpublished() {
				w.forget(id)
			}
		}
		w.wait(stagedSilence + 2*stageInterval)
		if n := s.stats.restaged.Load(); n != 2*stagedLimit {
			t.Errorf("%d messages are staged, must be %d", n, 2*stagedLimit)
		}
		// These wait for a target, with other verifiers. They delay the others only for a time.
		w.wait(stagedPatience + moment)
		if n := s.stats.restaged.Load(); n != 3*stagedLimit {
			t.Errorf("%d messages are staged, must be %d", n, 3*stagedLimit)
		}
	})
}

// The staging queue keeps its order.
func TestAMessageThatIsDoneShowsThatEarlierOnesHaveLeft(t *testing.T) {
	var w stagedWindow
	batch := func(n int) (messages []driver.Carried) {
		for range n {
			messages = append(messages, driver.Carried{ID: uuid.New(), Message: []byte("12345678")})
		}
		w.add(messages)
		return messages
	}
	check := func(when string, messages int) {
		t.Helper()
		room, bytes := w.room(time.Now())
		if stagedLimit-room != messages || stagedBytes-bytes != 8*messages {
			t.Errorf("%s, %d messages of %d bytes are on their way, must be %d of 8 bytes each", when, stagedLimit-room, stagedBytes-bytes, messages)
		}
	}
	first, second := batch(3), batch(4)
	check("at first", 7)
	w.noteDone(first[0].ID)
	w.noteDone(first[0].ID)
	w.noteDone(uuid.New())
	check("after one of the first batch is done", 6)
	w.noteDone(second[3].ID)
	check("after one of the second batch is done", 3)
	w.noteDone(first[1].ID)
	third := batch(2)
	w.keep(third, []uuid.UUID{third[1].ID})
	check("after one of the third batch could not be published", 4)
	w.noteDone(third[1].ID)
	check("after all are done", 0)
	if !slices.Equal(w.silent(time.Now().Add(time.Hour)), nil) {
		t.Error("messages are asked about that are done")
	}
}
