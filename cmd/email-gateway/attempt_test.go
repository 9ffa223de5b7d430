package main

import (
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/cmd/email-gateway/internal/transport"
)

// EMAIL_PREFETCH e-mails may wait for another attempt. Decoded they would need several times
// EMAIL_MAX_HELD_BYTES.
func TestAnEmailThatWaitsForASessionIsNotDecoded(t *testing.T) {
	const size = 16 << 20
	d := amqp.Delivery{MessageId: "0160aa00-0000-7000-8000-000000000001",
		Body: []byte(`{"from":"shop@example.org","to":["ann@example.org"],"subject":"Your order","text":"` + strings.Repeat("Thank you. ", size/11) + `"}`)}
	synctest.Test(t, func(t *testing.T) {
		g := &gateway{config: new(config), statuses: new(statuses), parsing: make(chan struct{}, 1),
			sessions: newSessions(&transport.Server{Timeout: time.Minute}, 1, slog.New(slog.DiscardHandler))}
		g.config.Max.Bytes, g.config.Max.Recipients = 2*size, 1
		g.metrics = newMetrics(g)
		g.sessions.turns <- struct{}{} // another e-mail has the only session
		before := heap()
		ended := make(chan error)
		go func() { ended <- (&attempt{gateway: g}).run(t.Context(), d) }()
		synctest.Wait()
		if grown := heap() - before; grown > size/2 {
			t.Errorf("while an e-mail of %d MiB waits, the heap has %d MiB more", size>>20, grown>>20)
		}
		if err := <-ended; !errors.Is(err, errBusy) {
			t.Error(err)
		}
	})
	runtime.KeepAlive(d)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
