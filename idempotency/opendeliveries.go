package idempotency

import (
	"cmp"
	"slices"
	"sync"
)

// openDeliveries are the deliveries of a session that are not settled, so that a multiple ack never
// settles one of them. Whatever tells the broker about a delivery does so here, one after the other:
// a delivery that is settled twice would end the channel. The prefetch bounds their number.
type openDeliveries struct {
	telling sync.Mutex // held while the broker is told, which may take long

	mu  sync.Mutex
	all []openDelivery // in the order of their tags
}

type openDelivery struct {
	tag     uint64
	settled *settlement
}

func (o *openDeliveries) add(tag uint64, settled *settlement) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, openDelivery{tag, settled})
}

// settle removes the delivery with this tag, or with multiple all up to it, and tells the broker.
func (o *openDeliveries) settle(tag uint64, multiple bool, tell func() error) error {
	o.telling.Lock()
	defer o.telling.Unlock()
	o.remove(tag, multiple)
	return tell()
}

func (o *openDeliveries) remove(tag uint64, multiple bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at, found := o.find(tag)
	switch {
	case multiple && found:
		o.all = slices.Delete(o.all, 0, at+1)
	case found:
		o.all = slices.Delete(o.all, at, at+1)
	}
}

func (o *openDeliveries) find(tag uint64) (at int, found bool) {
	return slices.BinarySearchFunc(o.all, tag, func(d openDelivery, tag uint64) int { return cmp.Compare(d.tag, tag) })
}

// ackBatch acks deliveries: with one multiple ack those before the first delivery that stays open,
// and the others one by one. It returns the deliveries.
func (o *openDeliveries) ackBatch(tags []uint64, ack func(tag uint64, multiple bool) error) ([]*settlement, error) {
	o.telling.Lock()
	defer o.telling.Unlock()
	tags = slices.Sorted(slices.Values(tags))
	settled, before := o.removeBatch(tags)
	if before > 0 {
		if err := ack(tags[before-1], true); err != nil {
			return settled, err
		}
	}
	for _, tag := range tags[before:] {
		if err := ack(tag, false); err != nil {
			return settled, err
		}
	}
	return settled, nil
}

// removeBatch removes deliveries and returns them, and how many of them are before all that stay open.
func (o *openDeliveries) removeBatch(tags []uint64) (settled []*settlement, before int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, tag := range tags {
		if at, found := o.find(tag); found {
			o.all[at].settled.done.Store(true)
			settled = append(settled, o.all[at].settled)
			o.all = slices.Delete(o.all, at, at+1)
		}
	}
	if len(o.all) == 0 {
		return settled, len(tags)
	}
	before, _ = slices.BinarySearch(tags, o.all[0].tag)
	return settled, before
}
