package sender

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

func orderedStager(b Broker) *stager {
	return &stager{broker: b, timeout: time.Second, packing: wire.Packing{Records: wire.MaxMembers, Bytes: groupBytes}, limit: new(wire.SizeLimit), ordered: true, count: newCounters()}
}

// batchOf returns messages of which each fills most of a group.
func batchOf(t *testing.T, names ...string) batch {
	t.Helper()
	return batchWith(t, strings.Repeat(".", groupBytes*2/3), names)
}

// smallBatchOf returns messages of which any number fits into a group.
func smallBatchOf(t *testing.T, names ...string) batch {
	t.Helper()
	return batchWith(t, "", names)
}

func batchWith(t *testing.T, filling string, names []string) (b batch) {
	t.Helper()
	for _, name := range names {
		m := small
		m.ID, m.OrderKey = uuid.New(), "key"
		m.Publishing.Body = []byte(" message" + name + " " + filling)
		publishing, err := wire.Encode(m, uuid.Nil)
		if err != nil {
			t.Fatal(err)
		}
		b.add(m.ID, wire.EncodeRecord(publishing))
	}
	return b
}

// begun starts publishing batches, one after the other.
func begun(t *testing.T, s *stager, batches ...batch) []*publication {
	t.Helper()
	out := make([]*publication, len(batches))
	for i, b := range batches {
		var err error
		if out[i], err = s.begin(t.Context(), b, true); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
	}
	return out
}

// While one is under way several gather that do not fit into one group. A failure concerns only its
// own transactions, and each gets its confirm when it comes.
func TestGatheredOrderedMessagesAreConfirmedGroupByGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &slowBroker{takes: 200 * time.Millisecond, fails: "message3"}
		start := time.Now()
		for i, one := range begun(t, orderedStager(b), batchOf(t, "1"), batchOf(t, "2"), batchOf(t, "3"), batchOf(t, "4")) {
			<-one.done
			if got, want := time.Since(start), time.Duration(i+1)*b.takes; got != want {
				t.Errorf("publication %d is done after %v, want %v", i+1, got, want)
			}
			if failed := one.err != nil; failed != (i == 2) {
				t.Errorf("publication %d: error %v", i+1, one.err)
			}
		}
		if want := []string{"1", "2", "4"}; !slices.Equal(b.taken, want) {
			t.Errorf("taken %v, want %v", b.taken, want)
		}
	})
}

func TestOrderedMessagesThatFitIntoAGroupTravelTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &slowBroker{takes: 200 * time.Millisecond}
		var batches []batch
		for i := range 20 {
			batches = append(batches, smallBatchOf(t, fmt.Sprint(i)))
		}
		start := time.Now()
		all := begun(t, orderedStager(b), batches...)
		<-all[len(all)-1].done
		if took := time.Since(start); took != 2*b.takes {
			t.Errorf("20 small ones took %v, want the time of two confirms", took)
		}
		if len(b.taken) != 20 || b.taken[0] != "0" || b.taken[19] != "19" {
			t.Errorf("taken %v", b.taken)
		}
	})
}

// Together they take longer than the timeout, which each has alone.
func TestEachGroupOfATransactionHasTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &slowBroker{takes: 800 * time.Millisecond}
		s := orderedStager(b)
		if err := s.stage(t.Context(), batchOf(t, "1", "2", "3")); err != nil {
			t.Error(err)
		}
		b.fails = "message2"
		b.taken = nil
		if err := s.stage(t.Context(), batchOf(t, "1", "2", "3")); !errors.Is(err, bridge.ErrNacked) {
			t.Errorf("error %v", err)
		}
		if len(b.taken) != 1 {
			t.Errorf("after a failure %v were taken, want the first one", b.taken)
		}
	})
}

// A broker that confirms nothing must not make callers wait for one timeout after the other.
func TestAnOrderedCallWaitsForTwiceTheTimeoutAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &slowBroker{takes: time.Hour}
		start := time.Now()
		for i, one := range begun(t, orderedStager(b), batchOf(t, "1"), batchOf(t, "2"), batchOf(t, "3"), batchOf(t, "4"), batchOf(t, "5")) {
			<-one.done
			if !bridge.Retryable(one.err) || !errors.Is(one.err, bridge.ErrUnconfirmed) {
				t.Errorf("publication %d: error %v", i+1, one.err)
			}
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// A call of Stage must not overtake earlier messages of the transaction with its key.
func TestSentMessagesOfAKeyAreStagedBeforeLaterStagedOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := new(slowBroker)
		s, _ := newSender(t, Options{OrderedShards: 1}, b, b)
		message := func(key, name string) bridge.Message {
			m := small
			m.OrderKey, m.Publishing.Body = key, []byte(" message"+name+" ")
			return m
		}
		o := s.TxMessages(t.Context(), nil)
		sent, err := o.Send(message("a", "1"), message("b", "9"), message("", "0"), message("a", "2"))
		if err != nil {
			t.Fatal(err)
		}
		third, err := o.Stage(t.Context(), message("a", "3"), message("c", "4"))
		if err != nil {
			t.Fatal(err)
		}
		if len(third) != 2 || slices.Contains(sent, third[0]) {
			t.Errorf("Stage returned the IDs %v", third)
		}
		if want := []string{"1", "2", "3", "4"}; !slices.Equal(b.taken, want) {
			t.Errorf("staged %v, want %v", b.taken, want)
		}
		if err := o.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
		if want := []string{"1", "2", "3", "4", "9", "0"}; !slices.Equal(b.taken, want) {
			t.Errorf("staged %v, want %v", b.taken, want)
		}
	})
}

var withKey = bridge.Message{RoutingKey: "target", OrderKey: "key"}
