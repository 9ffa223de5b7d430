package main

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// An order is a command to the application's process.
type order struct {
	Window   time.Duration // 0: as long as it takes to begin Stop transactions
	Workers  int           // concurrent transactions; with Rate their limit
	Rate     float64       // transactions begun per second, evenly spaced; 0: as many as the workers can
	Messages int           // per transaction
	Size     int           // of a message, in bytes
	RollBack bool          // all transactions roll back
	Stop     int           // end after this many transactions, if that is before the window's end; 0: never; not with Rate
	Open     int           // only begin this many transactions that send and then stay open
	Close    bool          // only commit the transactions that stay open
}

// An outcome is the result of an order.
type outcome struct {
	From, To  instant
	Messages  []sent          // the committed messages; messages of open transactions come with order.Close
	Took      []time.Duration // of every committed transaction, from BEGIN to the return of COMMIT
	Committed int             // transactions
	Failed    int             // transactions that ended with an error
	Failure   string          // the first error
}

// sent is a message and the time at which its COMMIT returned.
type sent struct {
	Number    uint64
	Committed instant
}

// runApplication is the application's process. It carries out orders from its standard input until
// that is closed.
func runApplication(ctx context.Context, p place) error {
	c, err := findContender(p.Contender)
	if err != nil {
		return err
	}
	b, err := openBusiness(ctx, p, c)
	if err != nil {
		return err
	}
	defer b.close()
	application, err := c.open(ctx, p, b)
	if err != nil {
		return err
	}
	defer application.close()
	l := &load{application: application, bodies: newBodies()}
	in, out := gob.NewDecoder(os.Stdin), gob.NewEncoder(os.Stdout)
	for {
		var o order
		if err := in.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read order: %w", err)
		}
		if err := out.Encode(l.obey(ctx, o)); err != nil {
			return fmt.Errorf("write outcome: %w", err)
		}
	}
}

// load runs an order's transactions.
type load struct {
	application application
	bodies      *bodies
	next        atomic.Uint64 // the number of the next message

	open    sync.WaitGroup // transactions that stay open
	release chan struct{}

	mu      sync.Mutex
	outcome outcome
}

func (l *load) obey(ctx context.Context, o order) outcome {
	l.mu.Lock()
	l.outcome = outcome{From: now()}
	l.mu.Unlock()
	switch {
	case o.Open > 0:
		l.begin(ctx, o)
	case o.Close:
		close(l.release)
		l.open.Wait()
	case o.Rate > 0:
		l.evenly(ctx, o)
	default:
		l.closely(ctx, o)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outcome.To = now()
	return l.outcome
}

// begin begins transactions that send their messages and stay open until they are released.
func (l *load) begin(ctx context.Context, o order) {
	l.release = make(chan struct{})
	var ready sync.WaitGroup
	for range o.Open {
		ready.Add(1)
		l.open.Go(func() {
			sent := sync.OnceFunc(ready.Done)
			defer sent()
			l.one(ctx, o, func() bool {
				sent()
				<-l.release
				return true
			})
		})
	}
	ready.Wait()
}

// closely has every worker begin its next transaction as soon as its last one has ended.
func (l *load) closely(ctx context.Context, o order) {
	end := time.Now().Add(o.Window)
	var begun atomic.Int64
	var workers sync.WaitGroup
	for range o.Workers {
		workers.Go(func() {
			for ctx.Err() == nil && (o.Window == 0 || time.Now().Before(end)) && (o.Stop == 0 || begun.Add(1) <= int64(o.Stop)) {
				l.one(ctx, o, func() bool { return !o.RollBack })
			}
		})
	}
	workers.Wait()
}

// evenly begins transactions at even intervals, however long they take.
func (l *load) evenly(ctx context.Context, o order) {
	start, distance := time.Now(), time.Duration(float64(time.Second)/o.Rate)
	room := make(chan struct{}, o.Workers)
	var running sync.WaitGroup
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := 0; ; i++ {
		due := time.Duration(i) * distance
		if due >= o.Window {
			break
		}
		timer.Reset(time.Until(start.Add(due)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			running.Wait()
			return
		}
		room <- struct{}{}
		running.Go(func() {
			l.one(ctx, o, func() bool { return true })
			<-room
		})
	}
	running.Wait()
}

// one runs one transaction and records its result.
func (l *load) one(ctx context.Context, o order, decide func() bool) {
	first, bodies := l.messages(o)
	begun := now()
	committed, err := l.application.transact(ctx, bodies, decide)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		if l.outcome.Failed++; l.outcome.Failure == "" {
			l.outcome.Failure = err.Error()
		}
	case committed > 0:
		l.outcome.Committed++
		l.outcome.Took = append(l.outcome.Took, committed.sub(begun))
		for i := range bodies {
			l.outcome.Messages = append(l.outcome.Messages, sent{first + uint64(i), committed})
		}
	}
}

func (l *load) messages(o order) (first uint64, bodies [][]byte) {
	n := max(1, o.Messages)
	first = l.next.Add(uint64(n)) - uint64(n)
	bodies = make([][]byte, n)
	for i := range bodies {
		bodies[i] = l.bodies.make(first+uint64(i), o.Size)
	}
	return first, bodies
}
