package verifier_test

import (
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// The waiting queue holds very many messages of a transaction that stays open, and behind
// them one of another transaction. When this commits, its message comes about as soon as
// so many messages take to be forwarded.
func TestAMessageBehindVeryManyOfAnOpenTransactionComesSoon(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	manyQueue, queue := s.Queue("many", nil), s.Queue("target", nil)
	const n, most = 20_000, 5
	many := make([]bridge.Message, n)
	for i := range many {
		many[i] = stage.To(manyQueue, "many")
	}
	open, _ := s.Begin(many...)
	aside := make(asideObserver, 1_000_000)
	v := s.Verify(verifier.Options{Observer: aside})
	s.Eventually("the many are set aside", func() bool { return v.Stats().SetAside >= n })
	other, ids := s.Begin(stage.To(queue, "other"))
	aside.await(t, ids[0].String())

	began := time.Now()
	if err := other.Commit(); err != nil {
		t.Fatal(err)
	}
	if d := s.Receive(queue, 1)[0]; d.MessageId != ids[0].String() {
		t.Errorf("got %s", d.MessageId)
	}
	behind := time.Since(began)

	began = time.Now()
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	s.Receive(manyQueue, n)
	forwarded := time.Since(began)

	t.Logf("behind %d of an open transaction: %v; to forward as many takes %v", n, behind, forwarded)
	if behind > most*forwarded {
		t.Errorf("a message behind %d of an open transaction takes %v, more than %d times as long as to forward as many: %v", n, behind, most, forwarded)
	}
	if got := v.Stats(); got.Dropped != 0 || got.DeadLettered != 0 || got.Sessions != 1 {
		t.Errorf("stats %+v", got)
	}
}

// An asideObserver tells of the messages that were set aside.
type asideObserver chan string

func (o asideObserver) Done(e verifier.Event) {
	if e.Verdict == verifier.SetAside {
		tell(o, e.ID)
	}
}

func (asideObserver) SessionEnded(error) {}

// await waits until a message is set aside.
func (o asideObserver) await(t *testing.T, id string) {
	t.Helper()
	await(t, o, "it is set aside", func(one string) bool { return one == id })
}
