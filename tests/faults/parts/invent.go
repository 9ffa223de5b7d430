package parts

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
)

// MostOrders is the most orders of an invented transaction.
const MostOrders = 150

// longestDelay is the longest delay of an invented message.
const longestDelay = 5 * time.Second

// invent returns a random transaction. With delays, each message of one transaction in four is
// delayed with even odds.
func invent(random *rand.Rand, targets []Target, delays bool) Transaction {
	t := Transaction{Items: [2]int{random.IntN(Stock), random.IntN(Stock)}}
	size := 1
	switch n := random.IntN(20); {
	case n == 0:
		size = 50 + random.IntN(MostOrders-50)
	case n < 6:
		size = 2 + random.IntN(10)
	}
	for range size {
		t.Orders = append(t.Orders, order(random, targets))
	}
	if delays && random.IntN(4) == 0 {
		for i := range t.Orders {
			if o := &t.Orders[i]; o.Key == "" && random.IntN(2) == 0 {
				o.NotBefore = time.Now().Add(rand.N(longestDelay)).Truncate(time.Millisecond)
			}
		}
	}
	switch n := random.IntN(20); {
	case n < 4:
		t.RollBack = true
	case n < 6:
		t.Undone = []Order{order(random, targets), order(random, targets)}
	}
	switch n := random.IntN(20); {
	case n < 2:
		t.Conflict = Serialization
	case n < 4:
		t.Conflict = Deadlock
	case n < 6:
		t.Conflict = LockTimeout
	}
	switch n := random.IntN(40); {
	case n == 0: // longer than a verifier's patience
		t.Hold = time.Duration(500+random.IntN(2500)) * time.Millisecond
	case n < 6:
		t.Hold = time.Duration(random.IntN(100)) * time.Millisecond
	}
	styles := []Style{WithSendTx, WithStageTx}
	if t.Hold == 0 && t.Undone == nil {
		styles = append(styles, WithInTx, WithStage, WithPgx, WithPgxStage)
	}
	t.Style = styles[random.IntN(len(styles))]
	return t
}

func order(random *rand.Rand, targets []Target) Order {
	to := pick(random, targets)
	o := Order{ID: uuid.Must(uuid.NewV7()), To: to.Target}
	if to.Keys > 0 {
		o.Key = Key(random.IntN(to.Keys))
	}
	return o
}

// Key returns the name of an order key.
func Key(n int) string { return fmt.Sprint("key ", n) }

// pick draws a target by weight.
func pick(random *rand.Rand, targets []Target) Target {
	total := 0
	for _, t := range targets {
		total += t.Weight
	}
	n := random.IntN(total)
	for _, t := range targets {
		if n -= t.Weight; n < 0 {
			return t
		}
	}
	panic("weights do not add up")
}
