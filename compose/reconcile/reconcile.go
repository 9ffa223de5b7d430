// Package reconcile compares the messages of committed transactions with the messages that arrived.
// The tests and the demo judge a run with it.
package reconcile

// A Difference has the messages that break the promise that each message of a committed transaction
// arrives, and no other.
type Difference[ID comparable] struct {
	Lost     []ID       // committed, and did not arrive
	Invented []ID       // arrived, and were not committed
	Repeated map[ID]int // arrived more than once, with the number of copies; a caller may allow them
}

// Compare returns the difference. The keys of committed are the committed messages. copies has the
// number of copies of each message that arrived.
func Compare[ID comparable, V any](committed map[ID]V, copies map[ID]int) Difference[ID] {
	d := Difference[ID]{Repeated: make(map[ID]int)}
	for id := range committed {
		if copies[id] == 0 {
			d.Lost = append(d.Lost, id)
		}
	}
	for id, n := range copies {
		if _, ok := committed[id]; !ok {
			d.Invented = append(d.Invented, id)
		}
		if n > 1 {
			d.Repeated[id] = n
		}
	}
	return d
}
