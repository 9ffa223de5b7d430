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

// A mailServer accepts e-mails by SMTP, and keeps a log of them. It runs in the director's process,
// which is never killed.
type mailServer struct {
	host, port string
	server     *smtp.Server

	mu        sync.Mutex
	taken     []receipt
	receiving int   // texts that are being received or not yet answered
	hold      *hold // nil if no client is kept waiting
}

// A receipt is the arrival of a message, at a time in microseconds since 1970.
type receipt struct {
	MessageID string
	At        int64
}

// startMailServer starts a mail server on a free port.
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
		_ = listener.Close() // the server closes it only if Serve has begun
		_ = m.server.Close()
		<-ended
		return nil
	}, nil
}

// receipts returns the log, in the order of arrival.
func (m *mailServer) receipts() []receipt {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.taken[:len(m.taken):len(m.taken)]
}

// idle reports whether no e-mail is being received, so that the log is complete.
func (m *mailServer) idle() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.receiving == 0
}

// A mailSession is a connection. The server identifies an e-mail by its Message-ID.
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
		return err // the text is incomplete, so the e-mail is not accepted
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

// receive notes the beginning of a text. The caller must call end at its end.
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

// A hold keeps one client waiting in the middle of its e-mails: half of them before their text, half
// of them after the server has accepted the text and before its answer. If the client is killed then,
// only the server's log tells which e-mails were accepted.
type hold struct {
	client   string
	turns    int           // under the server's mutex
	held     chan struct{} // a token for each session that is kept waiting
	released chan struct{}
	release  func()
}

const (
	holdPatience = 2 * time.Second        // until the first e-mail comes
	holdLimit    = 200 * time.Millisecond // after it; less than the client's time-out
)

// holdUp begins to keep a client waiting. The caller must call release.
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

// await waits until the client's sessions are kept waiting, and returns their number.
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

// keepBefore keeps every other session of the client waiting here. keepAfter keeps the others.
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
	default: // await needs no further tokens
	}
	<-h.released
}
