package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/mail"
	"strings"
	"sync"
	"time"

	"github.com/emersion/go-smtp"
)

// A mailServer takes e-mails by SMTP, and has a log of those that it has taken. It
// is part of the director's process: nobody kills it.
type mailServer struct {
	host, port string
	server     *smtp.Server

	mu        sync.Mutex
	taken     []receipt
	receiving int   // texts that are coming in, or are not answered to
	hold      *hold // nil if nobody is kept waiting
}

// A receipt says that a message has come, and when, in microseconds since 1970.
type receipt struct {
	MessageID string
	At        int64
}

// startMailServer starts one on a free port.
func startMailServer(ctx context.Context) (*mailServer, func() error, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, fmt.Errorf("start mail server: %w", err)
	}
	m := new(mailServer)
	m.host, m.port, _ = net.SplitHostPort(listener.Addr().String())
	m.server = smtp.NewServer(smtp.BackendFunc(func(c *smtp.Conn) (smtp.Session, error) {
		return &mailSession{server: m, client: c.Hostname()}, nil
	}))
	m.server.Domain = "demo.example.org"
	m.server.ErrorLog = log.New(io.Discard, "", 0) // clients that are killed
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = m.server.Serve(listener) // until it is closed
	}()
	return m, func() error {
		_ = listener.Close() // the library does not know it before Serve has begun
		_ = m.server.Close()
		<-ended
		return nil
	}, nil
}

// receipts is the log, the first e-mail first.
func (m *mailServer) receipts() []receipt {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.taken[:len(m.taken):len(m.taken)]
}

// idle tells whether the log says all: no e-mail is on its way into it.
func (m *mailServer) idle() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.receiving == 0
}

// A mailSession is a connection. The server knows an e-mail by its Message-ID.
type mailSession struct {
	server *mailServer
	client string
	late   *hold // keeps the session at the end of its e-mail
}

func (s *mailSession) Mail(string, *smtp.MailOptions) error { return nil }

func (s *mailSession) Rcpt(string, *smtp.RcptOptions) error {
	s.server.keepBefore(s)
	return nil
}

func (s *mailSession) Data(r io.Reader) error {
	defer s.server.receive()()
	message, err := mail.ReadMessage(r)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, message.Body); err != nil {
		return err // the text has no end: it is not taken
	}
	id, _, ok := strings.Cut(strings.TrimPrefix(message.Header.Get("Message-ID"), "<"), "@")
	if !ok {
		return errors.New("no Message-ID")
	}
	s.server.take(receipt{id, time.Now().UnixMicro()})
	s.server.keepAfter(s)
	return nil
}

func (s *mailSession) Reset()        { s.late = nil }
func (s *mailSession) Logout() error { return nil }

// receive notes that a text begins to come, and returns what notes its end.
func (m *mailServer) receive() (end func()) {
	add := func(n int) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.receiving += n
	}
	add(1)
	return func() { add(-1) }
}

func (m *mailServer) take(r receipt) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken = append(m.taken, r)
}

// A hold keeps one client waiting in the middle of its e-mails: half of them before
// their text was sent, half of them when they are taken and not answered to. Whoever
// kills the client then leaves it to the log to tell the ones from the others.
type hold struct {
	client   string
	turns    int           // under the server's mutex
	held     chan struct{} // a token for each session that is kept
	released chan struct{}
	release  func()
}

const (
	holdPatience = 2 * time.Second        // until an e-mail comes
	holdLimit    = 200 * time.Millisecond // from then on; the client must not lose its patience
)

// holdUp begins to keep a client waiting. The caller must release it.
func (m *mailServer) holdUp(client string) *hold {
	h := &hold{client: client, held: make(chan struct{}, gatewaySessions), released: make(chan struct{})}
	h.release = sync.OnceFunc(func() {
		m.mu.Lock()
		m.hold = nil
		m.mu.Unlock()
		close(h.released)
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hold = h
	return h
}

// await waits until the client's sessions are kept, and returns how many are.
func (h *hold) await(ctx context.Context) (n int, err error) {
	limit := time.NewTimer(holdPatience)
	defer limit.Stop()
	for ; n < gatewaySessions; n++ {
		select {
		case <-h.held:
			if n == 0 {
				limit.Reset(holdLimit)
			}
		case <-limit.C:
			return n, nil
		case <-ctx.Done():
			return n, context.Cause(ctx)
		}
	}
	return n, nil
}

// keepBefore keeps every other session of the client here, and the others later.
func (m *mailServer) keepBefore(s *mailSession) {
	m.mu.Lock()
	h := m.hold
	if h == nil || h.client != s.client {
		m.mu.Unlock()
		return
	}
	h.turns++
	here := h.turns%2 == 0
	m.mu.Unlock()
	if here {
		h.keep()
	} else {
		s.late = h
	}
}

func (m *mailServer) keepAfter(s *mailSession) {
	if s.late != nil {
		s.late.keep()
	}
}

// keep waits for the release.
func (h *hold) keep() {
	select {
	case h.held <- struct{}{}:
	default: // more sessions than are counted
	}
	<-h.released
}
