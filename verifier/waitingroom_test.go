package verifier

import (
	"testing"
	"time"
)

// roomOf returns a room in which n messages wait, which all arrived at one time.
func roomOf(settlers, n int, arrived time.Time) (*waitingRoom, []*message) {
	r := newWaitingRoom(settlers)
	all := make([]*message, n)
	for i := range all {
		all[i] = &message{received: arrived}
	}
	r.enter(false, all...)
	return r, all
}

// grow makes all idle messages slow.
func (r *waitingRoom) grow(now time.Time) {
	for _, m := range r.lookAgain(now, lookupLimit) {
		r.looked(m, false, now)
	}
}

func TestSlowMessagesAreLookedUpOnlyWhenDue(t *testing.T) {
	start := time.Now()
	r, _ := roomOf(4, 3, start)
	if n := len(r.lookAgain(start, lookupLimit)); n != 3 {
		t.Fatalf("%d of 3 fresh ones are looked up", n)
	}
	r, _ = roomOf(4, 3, start)
	now := start.Add(slowAge)
	r.grow(now)
	young := &message{received: now}
	r.enter(false, young)
	if again := r.lookAgain(now.Add(slowLook/2), lookupLimit); len(again) != 1 || again[0] != young {
		t.Errorf("%d are looked up, not the fresh one alone", len(again))
	}
	if n := len(r.lookAgain(now.Add(slowLook), lookupLimit)); n != 3 {
		t.Errorf("%d of 3 slow ones are looked up when it is due", n)
	}
}

func TestTheEndOfASlowTransactionHasAllSlowMessagesLookedUpAtOnce(t *testing.T) {
	for name, end := range map[string]func(*waitingRoom, time.Time){
		"by a settle": func(r *waitingRoom, _ time.Time) {
			m, slow := r.pick()
			if !slow {
				t.Error("a settler took it as a fresh one")
			}
			r.waited(m, false)
		},
		"by a lookup": func(r *waitingRoom, now time.Time) {
			found := r.lookAgain(now.Add(slowLook), 1)[0]
			r.looked(found, true, now.Add(slowLook))
		},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			r, _ := roomOf(4, 3, start)
			now := start.Add(slowAge)
			r.grow(now)
			end(r, now)
			select {
			case <-r.lookNow:
			default:
				t.Error("no settler is woken to look again")
			}
			if n := len(r.lookAgain(now.Add(slowLook+1), lookupLimit)); n != 2 {
				t.Errorf("%d of the 2 others are looked up", n)
			}
		})
	}
}

func TestSlowMessagesLeaveSettlersToFreshOnes(t *testing.T) {
	start := time.Now()
	r, _ := roomOf(4, 9, start)
	r.grow(start.Add(slowAge))
	for range 2 {
		if m, slow := r.pick(); m == nil || !slow {
			t.Fatal("a free settler leaves a slow one waiting")
		}
	}
	if m, _ := r.pick(); m != nil {
		t.Error("more than half of the settlers wait for slow ones")
	}
	young := &message{received: start.Add(slowAge)}
	r.enter(false, young)
	if m, slow := r.pick(); m != young || slow {
		t.Error("no settler for the fresh one")
	}
}

func TestManySlowMessagesAreLookedUpInShares(t *testing.T) {
	const n, shares = 1000, 1000 / slowShare
	now := time.Now()
	r, all := roomOf(4, 0, now)
	for range n {
		all = append(all, &message{received: now})
	}
	r.enter(true, all...)
	seen := make(map[*message]bool)
	for range shares {
		share := r.lookAgain(now, lookupLimit)
		if len(share) > slowShare {
			t.Fatalf("%d are looked up together", len(share))
		}
		for _, m := range share {
			seen[m] = true
			r.looked(m, false, now)
		}
		now = now.Add(slowLook / shares)
	}
	if len(seen) != n {
		t.Errorf("%d of %d are looked up in %v", len(seen), n, slowLook)
	}
}
