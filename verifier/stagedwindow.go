package verifier

import (
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

const (
	// stagedLimit and stagedBytes bound the messages that a verifier has staged and that are on their
	// way. New messages of senders wait behind these only. The limit is four claims, so that the
	// verifier forwards some while it claims and stages others.
	stagedLimit = 2000
	stagedBytes = 16 << 20
	// If none of these messages is staged or done for stagedSilence, the verifier queries the ledger for
	// rows that are gone, because other verifiers may have forwarded their messages. If none is staged or
	// done for stagedPatience, the messages no longer count: all of them wait, in other verifiers, for
	// targets that take nothing.
	stagedSilence  = time.Second
	stagedPatience = driver.StageAgainAfter
)

// A stagedWindow contains the messages that a stager has staged and that are on their way. The
// staging queue keeps its order: when a message is done, all messages of earlier batches have left
// the queue, whichever verifier has them.
type stagedWindow struct {
	mu      sync.Mutex
	batches []*stagedBatch // in the order of staging
	of      map[uuid.UUID]*stagedBatch
	bytes   int
	moved   time.Time // when a message was last added or done
	asked   time.Time // when silent last returned the messages
}

type stagedBatch struct{ bytes map[uuid.UUID]int }

// room returns the number of messages and bytes that there is room for.
func (w *stagedWindow) room(now time.Time) (messages, bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.batches) > 0 && now.Sub(w.moved) >= stagedPatience {
		w.dropFirst()
	}
	return stagedLimit - len(w.of), stagedBytes - w.bytes
}

// add is called before the messages are published, because a delivery may come before its confirm.
func (w *stagedWindow) add(messages []driver.Carried) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := &stagedBatch{make(map[uuid.UUID]int, len(messages))}
	if w.of == nil {
		w.of = make(map[uuid.UUID]*stagedBatch)
	}
	w.batches, w.moved = append(w.batches, b), time.Now()
	for _, m := range messages {
		w.drop(m.ID)
		b.bytes[m.ID], w.of[m.ID] = len(m.Message), b
		w.bytes += len(m.Message)
	}
}

// noteDone removes a message that is done here, or whose row is gone.
func (w *stagedWindow) noteDone(id uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.of[id]
	if b == nil {
		return
	}
	w.moved = time.Now()
	for w.batches[0] != b {
		w.dropFirst()
	}
	w.drop(id)
}

// keep removes the messages that were added but not staged.
func (w *stagedWindow) keep(added []driver.Carried, staged []uuid.UUID) {
	if len(staged) == len(added) {
		return
	}
	is := setOf(staged)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range added {
		if !is[m.ID] {
			w.drop(m.ID)
		}
	}
}

// silent returns all messages, if none has been staged or done for stagedSilence.
func (w *stagedWindow) silent(now time.Time) (ids []uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.of) == 0 || now.Sub(w.moved) < stagedSilence || now.Sub(w.asked) < stagedSilence {
		return nil
	}
	w.asked = now
	for id := range w.of {
		ids = append(ids, id)
	}
	return ids
}

func (w *stagedWindow) dropFirst() {
	first := w.batches[0]
	for id := range first.bytes {
		w.drop(id)
	}
	w.batches = w.batches[1:]
}

func (w *stagedWindow) drop(id uuid.UUID) {
	if b := w.of[id]; b != nil {
		w.bytes -= b.bytes[id]
		delete(b.bytes, id)
		delete(w.of, id)
	}
}
