package idempotency

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// openDeliveries are the deliveries of a session that the broker still holds unacked, so that a
// multiple ack never acks another delivery. All acks and rejects go through openDeliveries, one after
// the other: a second one for a delivery would end the channel. The prefetch bounds their number.
//
// Acks gather while there are enough deliveries, because each ack is work for the queue. An ack
// that gets lost with the process costs a redelivery, like an ack that the broker has not read.
type openDeliveries struct {
	ack      func(tag uint64, multiple bool) error
	enough   int           // acks gather while more deliveries than this are not acked
	most     int           // this many acks do not wait for more
	gathered chan struct{} // an ack waits: flush is to be called within ackPause

	telling sync.Mutex // held during calls to the broker, which may take long

	mu    sync.Mutex
	all   []*openDelivery // in the order of their tags
	acked int             // number of acked ones among them
}

// ackPause is how long an ack may wait for others.
const ackPause = 5 * time.Millisecond

// An openDelivery is a delivery that the broker holds unacked.
type openDelivery struct {
	tag     uint64
	acked   bool        // acked here, but the broker does not know yet
	done    atomic.Bool // acked or rejected
	passKey func()      // in a batch consumer: releases the delivery's key before the worker ends; otherwise nil
}

// releaseKey releases the key of a delivery that was acked or rejected.
func (d *openDelivery) releaseKey(err error) error {
	if err == nil && d.passKey != nil {
		d.passKey()
	}
	return err
}

func newOpenDeliveries(ack func(tag uint64, multiple bool) error, workers, prefetch int) *openDeliveries {
	return &openDeliveries{ack: ack, enough: workers, most: prefetch / 4, gathered: make(chan struct{}, 1)}
}

func (o *openDeliveries) add(d *openDelivery) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, d)
}

// acknowledge removes the delivery with this tag, or with multiple all up to it, and tells the broker.
func (o *openDeliveries) acknowledge(tag uint64, multiple bool, tell func() error) error {
	o.telling.Lock()
	defer o.telling.Unlock()
	for _, acked := range o.remove(tag, multiple) { // tell must not reject these
		if err := o.ack(acked, false); err != nil {
			return err
		}
	}
	return tell()
}

// remove removes the delivery with this tag, or with multiple all up to it, and returns the acked
// ones.
func (o *openDeliveries) remove(tag uint64, multiple bool) (acked []uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at, found := o.find(tag)
	if !found {
		return nil
	}
	from := at
	if multiple {
		from = 0
	}
	for _, d := range o.all[from : at+1] {
		if d.acked {
			acked = append(acked, d.tag)
			d.done.Store(true)
		}
	}
	o.acked -= len(acked)
	o.all = slices.Delete(o.all, from, at+1)
	return acked
}

func (o *openDeliveries) find(tag uint64) (at int, found bool) {
	return slices.BinarySearchFunc(o.all, tag, func(d *openDelivery, tag uint64) int { return cmp.Compare(d.tag, tag) })
}

// ackOne acks a delivery, now or together with others. Once the session is over it acks now,
// because the session has called flush for the last time.
func (o *openDeliveries) ackOne(tag uint64, over func() bool) error {
	d, gather := o.mark(tag)
	switch {
	case d == nil:
		return o.ack(tag, false) // the broker returns the error
	case !gather || over():
		return o.flush()
	}
	select {
	case o.gathered <- struct{}{}:
	default:
	}
	return nil
}

// mark notes an ack, and reports whether it may wait. The delivery is nil if it is not open.
func (o *openDeliveries) mark(tag uint64) (d *openDelivery, gather bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at, found := o.find(tag)
	if !found {
		return nil, false
	}
	if d = o.all[at]; !d.acked {
		d.acked = true
		o.acked++
	}
	return d, o.acked < o.most && len(o.all)-o.acked > o.enough
}

// ackBatch acks deliveries now, and returns them.
func (o *openDeliveries) ackBatch(tags []uint64) (all []*openDelivery, err error) {
	for _, tag := range tags {
		if d, _ := o.mark(tag); d != nil {
			all = append(all, d)
		}
	}
	return all, o.flush()
}

// flush sends all acks to the broker: one multiple ack for the deliveries before the first that
// stays open, and single acks for the others.
func (o *openDeliveries) flush() error {
	o.telling.Lock()
	defer o.telling.Unlock()
	return o.tellAll()
}

func (o *openDeliveries) tellAll() error {
	tags, before := o.take()
	if before > 0 {
		if err := o.ack(tags[before-1], true); err != nil {
			return err
		}
	}
	for _, tag := range tags[before:] {
		if err := o.ack(tag, false); err != nil {
			return err
		}
	}
	return nil
}

// take removes the acked deliveries, and returns how many of them are before the first that stays
// open.
func (o *openDeliveries) take() (tags []uint64, before int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.acked == 0 {
		return nil, 0
	}
	open := o.all[:0]
	for _, d := range o.all {
		switch {
		case !d.acked:
			open = append(open, d)
			continue
		case len(open) == 0:
			before++
		}
		d.done.Store(true)
		tags = append(tags, d.tag)
	}
	clear(o.all[len(open):])
	o.all, o.acked = open, 0
	return tags, before
}
