package bridge

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Both ends of a pipe are in one bubble of package synctest: there a test fails at once on a
// deadlock.

// record is one write of a goroutine: the writer, its number, and a filling that shows whether the
// record was torn.
func record(writer, number uint32) []byte {
	p := make([]byte, 8+number%512)
	binary.BigEndian.PutUint32(p, writer)
	binary.BigEndian.PutUint32(p[4:], number)
	for i := range p[8:] {
		p[8+i] = byte(writer + number)
	}
	return p
}

// Many goroutines write, and one closes after them.
func TestBurstsKeepTheOrderAndLoseNothing(t *testing.T) {
	synctest.Test(t, testBursts)
}

func testBursts(t *testing.T) {
	near, far := net.Pipe() // without a buffer
	const writers, records = 16, 500
	defer far.Close()
	c := newBurstConn(near)
	var writing, closing sync.WaitGroup
	for w := range uint32(writers) {
		writing.Go(func() {
			for n := range uint32(records) {
				c.waitRoom(context.Background())
				if _, err := c.Write(record(w, n)); err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
			}
		})
	}
	closing.Go(func() {
		writing.Wait()
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	next := make([]uint32, writers)
	head := make([]byte, 8)
	for range writers * records {
		if _, err := io.ReadFull(far, head); err != nil {
			t.Fatalf("read: %v", err)
		}
		w, n := binary.BigEndian.Uint32(head), binary.BigEndian.Uint32(head[4:])
		if w >= writers || n != next[w] {
			t.Fatalf("record %d of writer %d, expected %d", n, w, next[min(w, writers-1)])
		}
		next[w]++
		want := record(w, n)[8:]
		got := make([]byte, len(want))
		if _, err := io.ReadFull(far, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("record %d of writer %d is torn (%v)", n, w, err)
		}
	}
	if _, err := far.Read(head); err != io.EOF {
		t.Errorf("after the last record: %v", err)
	}
	closing.Wait()
}

// busyConn reports every Write, and holds it until the test lets it return.
type busyConn struct {
	net.Conn
	writes  chan int
	proceed chan struct{}
}

func (c *busyConn) Write(p []byte) (int, error) {
	c.writes <- len(p)
	<-c.proceed
	return len(p), nil
}

func TestWritesDuringABurstGoOutWithOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, _ := net.Pipe()
		busy := &busyConn{Conn: near, writes: make(chan int), proceed: make(chan struct{})}
		c := newBurstConn(busy)
		write := func(n int) {
			if _, err := c.Write(make([]byte, n)); err != nil {
				t.Fatal(err)
			}
		}
		write(7)
		if n := <-busy.writes; n != 7 {
			t.Fatalf("the first call wrote %d bytes", n)
		}
		for range 100 {
			write(10)
		}
		busy.proceed <- struct{}{}
		if n := <-busy.writes; n != 1000 {
			t.Errorf("the second call wrote %d bytes, not all 1000", n)
		}
		busy.proceed <- struct{}{}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestWriteDoesNotWaitForAPeerThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe() // no buffer: the peer reads, or nothing moves
		c := newBurstConn(near)
		const size = 20 * burstLimit
		if _, err := c.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		read := make([]byte, 1)
		if _, err := io.ReadFull(far, read); err != nil { // the writer is in the first burst
			t.Fatal(err)
		}
		if _, err := c.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}

		const limit = time.Second
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		if room := c.waitRoom(ctx); room || time.Since(began) != limit {
			t.Errorf("there is room behind a full buffer: %t, after %v", room, time.Since(began))
		}
		room := make(chan bool)
		for range 10 {
			go func() { room <- c.waitRoom(t.Context()) }()
		}
		synctest.Wait()
		var reading sync.WaitGroup
		reading.Go(func() {
			if n, err := io.Copy(io.Discard, far); n != 2*size-1 || err != nil {
				t.Errorf("read %d bytes, %v", n, err)
			}
		})
		for range 10 {
			if !<-room {
				t.Error("the peer reads, and a waiter did not get room")
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		reading.Wait()
	})
}

func TestCloseDoesNotWaitForAPeerThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		c := newBurstConn(near)
		if _, err := c.Write([]byte("never read")); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_ = c.Close()
		if took := time.Since(start); took != lastWrite {
			t.Errorf("close took %v, want %v", took, lastWrite)
		}
		if !c.waitRoom(t.Context()) {
			t.Error("a closed connection makes waiters wait")
		}
		if _, err := c.Write(nil); err == nil {
			t.Error("write after close succeeds")
		}
		if err := c.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("second close: %v", err)
		}
	})
}

func TestAnErrorOfTheConnectionIsTheNextWritesError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		_ = far.Close()
		c := newBurstConn(near)
		if _, err := c.Write(make([]byte, 2*burstLimit)); err != nil {
			t.Fatalf("the first write: %v", err)
		}
		<-c.done
		if _, err := c.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the next write: %v", err)
		}
		if !c.waitRoom(t.Context()) {
			t.Error("a broken connection makes waiters wait")
		}
		_ = c.Close()
	})
}
