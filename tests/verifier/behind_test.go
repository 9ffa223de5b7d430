package verifier_test

import (
	"testing"

	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// The waiting queue holds very many messages of a transaction that stays open, and behind them a
// message of another transaction. After the other one commits, its message is forwarded within a
// round of the queue. (Package verifier's tests bound the duration of a round.)
func TestAMessageBehindVeryManyOfAnOpenTransactionComesWithTheNextRound(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	manyQueue, queue := s.Queue("many", nil), s.Queue("target", nil)
	const n, prefetch = 5000, 500
	open, _ := s.Begin(some(manyQueue, n)...)
	aside := make(asideObserver, 1_000_000)
	v := s.Verify(verifier.Options{Observer: aside, Prefetch: prefetch})
	s.Eventually("the many are set aside", func() bool { return v.Stats().SetAside >= n })
	other, ids := s.Begin(stage.To(queue, "other"))
	aside.await(t, ids[0].String())

	before := v.Stats().SetAside
	if err := other.Commit(); err != nil {
		t.Fatal(err)
	}
	if d := s.Receive(queue, 1)[0]; d.MessageId != ids[0].String() {
		t.Errorf("got %s", d.MessageId)
	}
	behind := v.Stats().SetAside - before
	t.Logf("behind %d of an open transaction, which were set aside %d times meanwhile", n, behind)
	if behind > 2*n {
		t.Errorf("%d of an open transaction were set aside %d times before a message behind them came", n, behind)
	}

	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	s.Receive(manyQueue, n)
	if got := v.Stats(); got.Dropped != 0 || got.DeadLettered != 0 || got.Sessions != 1 {
		t.Errorf("stats %+v", got)
	}
}

// asideObserver reports the messages that were set aside.
type asideObserver chan string

func (o asideObserver) Done(e verifier.Event) {
	if e.Verdict == verifier.SetAside {
		trySend(o, e.ID)
	}
}

func (asideObserver) SessionEnded(error) {}

// await waits until a message is set aside.
func (o asideObserver) await(t *testing.T, id string) {
	t.Helper()
	await(t, o, "it is set aside", func(one string) bool { return one == id })
}
