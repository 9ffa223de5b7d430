package main

import (
	"math/rand/v2"
	"time"
)

// A plan determines the shop's transactions and how each of them ends. It is made from a seed, so that
// the successor of a killed process computes the same transactions.
type plan struct {
	Seed    uint64
	Orders  int
	Workers int           // shop processes
	Holders int           // shop processes that keep one transaction open
	Hold    time.Duration // for how long, about
}

// perOrder is the shop's mean pause per order, over all processes.
const perOrder = 2 * time.Millisecond

// A basket is one transaction with its orders.
type basket struct {
	Orders int
	Hold   time.Duration // how long it stays open once its messages are staged
	End    ending
}

type ending int

const (
	commits         ending = iota
	rollsBack              // the shop rolls back
	diesUncommitted        // the process is killed after staging, before the commit
	diesCommitted          // the process is killed right after the commit
)

// baskets returns the transactions of one shop process, in order. A process of its own places the last
// order, after all others have ended: a verifier that took over a moment ago drops nothing before it
// has found a message that was committed since.
func (p plan) baskets(worker int) []basket {
	if worker == p.Workers {
		return []basket{{Orders: 1}}
	}
	random := rand.New(rand.NewPCG(p.Seed, uint64(worker)))
	left := (p.Orders - 1) / p.Workers
	if worker < (p.Orders-1)%p.Workers {
		left++
	}
	var all []basket
	for left > 0 {
		b := basket{Orders: min(1+random.IntN(7), left)}
		if random.IntN(5) == 0 {
			b.End = rollsBack
		}
		all = append(all, b)
		left -= b.Orders
	}
	if len(all) < 8 {
		return all
	}
	// Make some baskets special, spread over the run and over the processes.
	at := func(quarter int) *basket { return &all[(quarter*len(all)+worker*len(all)/p.Workers)/4] }
	at(0).End = diesUncommitted
	if worker < p.Holders {
		at(1).Hold = p.Hold/2 + time.Duration(random.Int64N(int64(p.Hold)))/2
	}
	at(2).End = diesCommitted
	return all
}

// pause returns a random pause after a basket.
func (p plan) pause(b basket) time.Duration {
	mean := time.Duration(b.Orders*p.Workers) * perOrder
	return mean/2 + rand.N(mean)
}
