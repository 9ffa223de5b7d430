package idempotency

import (
	"fmt"
	"slices"
	"testing"
)

func TestABatchIsAckedWithOneWordUpToTheFirstOpenDelivery(t *testing.T) {
	for _, c := range []struct {
		settled, batch []uint64
		want           []string
	}{
		{nil, []uint64{3, 1, 2}, []string{"3 true"}},
		{nil, []uint64{1, 2, 4, 6}, []string{"2 true", "4 false", "6 false"}},
		{nil, []uint64{2, 3}, []string{"2 false", "3 false"}},
		{[]uint64{1}, []uint64{2, 3}, []string{"3 true"}},
		{[]uint64{1, 3}, []uint64{2, 4, 6}, []string{"4 true", "6 false"}},
		{[]uint64{1, 2, 3}, []uint64{4, 5, 6}, []string{"6 true"}},
	} {
		open := new(openDeliveries)
		for tag := range uint64(6) {
			open.add(tag+1, new(settlement))
		}
		for _, tag := range c.settled {
			_ = open.settle(tag, false, func() error { return nil })
		}
		var said []string
		settled, err := open.ackBatch(c.batch, func(tag uint64, multiple bool) error {
			said = append(said, fmt.Sprint(tag, " ", multiple))
			return nil
		})
		if err != nil || !slices.Equal(said, c.want) || len(settled) != len(c.batch) {
			t.Errorf("%d settled, acks of %d are %q, %v, must be %q", c.settled, c.batch, said, err, c.want)
		}
	}
}
