package sender

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
)

// orderedBroker returns a broker for an orderedStager. A confirm takes less than half of the
// stager's timeout.
func orderedBroker() *slowBroker { return &slowBroker{takes: 400 * time.Millisecond} }

// Each transaction waits for one group of the others, and keeps its own order.
func TestALargeTransactionMakesNoOtherWaitForAllOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := orderedBroker()
		start := time.Now()
		all := begun(t, orderedStager(b), batchOf(t, "1", "2", "3", "4", "5"), batchOf(t, "6"), batchOf(t, "7", "8"))
		<-all[1].done
		if got, want := time.Since(start), 2*b.takes; got != want {
			t.Errorf("the one behind the large one is done after %v, want %v", got, want)
		}
		for i, one := range all {
			<-one.done
			if one.err != nil {
				t.Errorf("publication %d: %v", i+1, one.err)
			}
		}
		if want := []string{"1", "6", "7", "2", "8", "3", "4", "5"}; !slices.Equal(b.taken, want) {
			t.Errorf("taken %v, want %v", b.taken, want)
		}
	})
}

// Small batches join the rest of a large one if they fit into its group.
func TestTheRestOfALargeTransactionSharesItsGroupWithOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := orderedBroker()
		s := orderedStager(b)
		s.packing.Records = 2
		all := begun(t, s, smallBatchOf(t, "1", "2", "3"), smallBatchOf(t, "4", "5"))
		time.Sleep(b.takes)
		synctest.Wait() // the second group is under way
		all = append(all, begun(t, s, smallBatchOf(t, "6"))...)
		for i, one := range all {
			<-one.done
			if one.err != nil {
				t.Errorf("publication %d: %v", i+1, one.err)
			}
		}
		if want := []string{"1", "2", "4", "5", "3", "6"}; !slices.Equal(b.taken, want) || len(b.published) != 3 {
			t.Errorf("taken %v in %d groups, want %v in 3", b.taken, len(b.published), want)
		}
		if s.underWay != 0 {
			t.Errorf("%d bytes are under way after the end", s.underWay)
		}
	})
}

// Its caller has rolled back: the rest would only delay the others, and its next attempt.
func TestNothingMoreIsPublishedOfALargeTransactionThatHasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := orderedBroker()
		s := orderedStager(b)
		large := batchOf(t, "1", "2", "3", "4", "5")
		ctx, cancel := context.WithTimeout(t.Context(), b.takes+b.takes/2) // during the second group
		defer cancel()
		all := begun(t, s, large)
		if err := s.wait(ctx, all[0], large.ids[0]); !errors.Is(err, bridge.ErrUnconfirmed) {
			t.Errorf("the caller gets %v", err)
		}
		<-all[0].done
		if want := []string{"1", "2"}; all[0].err == nil || !slices.Equal(b.taken, want) {
			t.Errorf("taken %v, error %v, want %v and an error", b.taken, all[0].err, want)
		}
		if s.underWay != 0 {
			t.Errorf("%d bytes are under way after the end", s.underWay)
		}
	})
}
