// Package mailserver is a real SMTP server for tests, built on go-smtp. It fails on demand at any
// moment of an e-mail's transfer, and records the e-mails that it has accepted.
package mailserver

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/mail"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
)

// A Moment is a step at which the server can fail.
type Moment string

// The moments, in their order.
const (
	Greeting Moment = "greeting"
	Mail     Moment = "MAIL"
	Rcpt     Moment = "RCPT"
	Data     Moment = "DATA"
	Text     Moment = "text"   // part of it has arrived
	Answer   Moment = "answer" // the whole text has arrived, with the final dot
)

// An Action is the server's behaviour at a moment. The zero Action goes on.
type Action struct {
	Reply int  // refuse with this code, from 400 on
	Drop  bool // close the connection
	Stall bool // say nothing until the client closes the connection
}

// A Visit is a client at a moment.
type Visit struct {
	Moment    Moment
	Recipient string // at Rcpt
	N         int    // how often the moment has come before
}

// An Email is an e-mail that the server has accepted: it alone is responsible for it now.
type Email struct {
	From string
	To   []string
	Text string
	mail.Header
}

// Options configure a server.
type Options struct {
	TLS            *tls.Config // with it the server offers STARTTLS
	Implicit       bool        // encrypted from the first byte, without STARTTLS
	User, Password string      // if set, a client must log in
	Address        string      // to listen on; default a free port of 127.0.0.1
}

// A Server runs until the end of its test.
type Server struct {
	Host string
	Port string

	server   *smtp.Server
	listener net.Listener
	ended    chan struct{}
	opts     Options

	mu     sync.Mutex
	script func(Visit) Action
	visits map[Moment]int
	taken  []Email
	change chan struct{}
}

// Start starts a server, by default on a free port.
func Start(t testing.TB, opts Options) *Server {
	t.Helper()
	if opts.Address == "" {
		opts.Address = "127.0.0.1:0"
	}
	s := &Server{opts: opts, visits: make(map[Moment]int), change: make(chan struct{})}
	listener, err := net.Listen("tcp", opts.Address)
	if err != nil {
		t.Fatal(err)
	}
	s.Host, s.Port, _ = net.SplitHostPort(listener.Addr().String())
	listener = &listening{listener, s}
	if opts.Implicit {
		listener = tls.NewListener(listener, opts.TLS)
	}
	s.server = smtp.NewServer(smtp.BackendFunc(func(c *smtp.Conn) (smtp.Session, error) { return &session{server: s, conn: c}, nil }))
	s.server.Domain = "mail.test"
	s.server.TLSConfig = opts.TLS
	s.server.MaxMessageBytes = 64 << 20
	s.server.ErrorLog = silent{}
	s.listener, s.ended = listener, make(chan struct{})
	go func() {
		defer close(s.ended)
		_ = s.server.Serve(listener) // until Close
	}()
	t.Cleanup(s.Close)
	return s
}

// Address returns the address on which the server listens.
func (s *Server) Address() string { return net.JoinHostPort(s.Host, s.Port) }

// Close ends the server and its connections. Then the port refuses connections.
func (s *Server) Close() {
	_ = s.listener.Close() // before Serve has begun, the library does not close it
	_ = s.server.Close()
	<-s.ended
}

// Do sets the server's behaviour from now on; nil accepts everything. The function is called for
// one visit at a time.
func (s *Server) Do(script func(Visit) Action) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script = script
	clear(s.visits)
}

// Always performs one action at one moment.
func Always(at Moment, action Action) func(Visit) Action { return First(at, 1<<30, action) }

// First performs the action at the moment's first n visits.
func First(at Moment, n int, action Action) func(Visit) Action {
	return func(v Visit) Action {
		if v.Moment == at && v.N < n {
			return action
		}
		return Action{}
	}
}

// Taken returns the e-mails that the server has accepted, also those without a confirmation.
func (s *Server) Taken() []Email {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Email(nil), s.taken...)
}

// WaitTaken waits until the server has accepted n e-mails.
func (s *Server) WaitTaken(t testing.TB, n int, patience time.Duration) []Email {
	t.Helper()
	late := time.After(patience)
	for {
		s.mu.Lock()
		taken, change := append([]Email(nil), s.taken...), s.change
		s.mu.Unlock()
		if len(taken) >= n {
			return taken
		}
		select {
		case <-change:
		case <-late:
			t.Fatalf("%d of %d e-mails came", len(taken), n)
		}
	}
}

func (s *Server) visit(at Moment, recipient string) Action {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.visits[at]
	s.visits[at]++
	if s.script == nil {
		return Action{}
	}
	return s.script(Visit{at, recipient, n})
}

func (s *Server) take(e Email) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = append(s.taken, e)
	close(s.change)
	s.change = make(chan struct{})
}

var errDropped = errors.New("dropped")

// act performs an action. It returns an error if the visit ends here.
func act(action Action, conn net.Conn) error {
	switch {
	case action.Stall:
		_, _ = io.Copy(io.Discard, conn) // until the client leaves
		fallthrough
	case action.Drop:
		_ = conn.Close()
		return errDropped
	case action.Reply > 0:
		class := action.Reply / 100
		return &smtp.SMTPError{Code: action.Reply, EnhancedCode: smtp.EnhancedCode{class, 7, 1}, Message: "not for <ann@example.org>, says the test"}
	}
	return nil
}

type session struct {
	server *Server
	conn   *smtp.Conn
	known  bool
	email  Email
}

var _ smtp.AuthSession = (*session)(nil)

func (s *session) AuthMechanisms() []string {
	if s.server.opts.User == "" {
		return nil
	}
	return []string{sasl.Plain}
}

func (s *session) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		if user != s.server.opts.User || password != s.server.opts.Password {
			return smtp.ErrAuthFailed
		}
		s.known = true
		return nil
	}), nil
}

func (s *session) Mail(from string, _ *smtp.MailOptions) error {
	if s.server.opts.User != "" && !s.known {
		return smtp.ErrAuthRequired
	}
	s.email = Email{From: from}
	return act(s.server.visit(Mail, ""), s.conn.Conn())
}

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	s.email.To = append(s.email.To, to)
	return act(s.server.visit(Rcpt, to), s.conn.Conn())
}

func (s *session) Data(r io.Reader) error {
	some := make([]byte, 1)
	if _, err := io.ReadFull(r, some); err != nil {
		return err
	}
	if err := act(s.server.visit(Text, ""), s.conn.Conn()); err != nil {
		return err
	}
	rest, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	s.email.Text = string(some) + string(rest)
	parsed, err := mail.ReadMessage(strings.NewReader(s.email.Text))
	if err != nil {
		return err
	}
	s.email.Header = parsed.Header
	action := s.server.visit(Answer, "")
	if action.Reply == 0 {
		s.server.take(s.email)
	}
	return act(action, s.conn.Conn())
}

func (s *session) Reset()        {}
func (s *session) Logout() error { return nil }

// listening wraps a server's connections in connection.
type listening struct {
	net.Listener
	server *Server
}

func (l *listening) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &connection{Conn: conn, server: l.server}, nil
}

// connection fails where the library has no hook: before the greeting, and in place of the 354 to
// DATA. It works only on connections without encryption.
type connection struct {
	net.Conn
	server  *Server
	greeted bool
}

func (c *connection) Write(p []byte) (int, error) {
	at := Moment("")
	switch {
	case !c.greeted && strings.HasPrefix(string(p), "220 "):
		at, c.greeted = Greeting, true
	case strings.HasPrefix(string(p), "354 "):
		at = Data
	default:
		return c.Conn.Write(p)
	}
	err := act(c.server.visit(at, ""), c.Conn)
	var refusal *smtp.SMTPError
	if errors.As(err, &refusal) { // and close: the library believes that it has accepted
		_, _ = fmt.Fprintf(c.Conn, "%d %s\r\n", refusal.Code, refusal.Message)
		_ = c.Close()
	}
	if err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

type silent struct{}

func (silent) Printf(string, ...any) {}
func (silent) Println(...any)        {}
