package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"time"

	gomail "github.com/wneessen/go-mail"
)

// The errors of this package, to be tested with errors.Is. All except ErrDoubtful mean that the
// e-mail was certainly not sent.
var (
	// ErrUnavailable: there is no session in which an e-mail could be sent.
	ErrUnavailable = errors.New("mail server not available")
	// ErrLogin: the server refuses user or password. It is ErrUnavailable too.
	ErrLogin = errors.New("mail server refuses the login")
	// ErrTemporary: the same e-mail may succeed later.
	ErrTemporary = errors.New("not sent; may be sent later")
	// ErrPermanent: the server will never take this e-mail.
	ErrPermanent = errors.New("refused permanently")
	// ErrDoubtful: the server may have accepted the e-mail.
	ErrDoubtful = errors.New("may have been sent")
)

// Security is how the connection is encrypted.
type Security string

// The kinds of Security.
const (
	StartTLS Security = "starttls" // the server must offer it; mostly port 587
	Implicit Security = "tls"      // from the first byte; mostly port 465
	None     Security = "none"     // never together with a password
)

// A Server describes how to connect to a mail server. User and Password may be empty, and Roots nil;
// the other fields are required.
type Server struct {
	Host     string
	Port     int
	Security Security
	Roots    *x509.CertPool // nil for the system's
	User     string
	Password string
	Name     string        // the client's name in EHLO
	Timeout  time.Duration // for connecting as a whole, then for each command
	Answer   time.Duration // for the server's answer to the dot; RFC 5321 asks for 10 minutes
}

// mechanisms are the login mechanisms that need no secret except the password, best first. The
// library uses PLAIN and LOGIN only over encrypted connections.
var mechanisms = []gomail.SMTPAuthType{gomail.SMTPAuthSCRAMSHA256, gomail.SMTPAuthSCRAMSHA1,
	gomail.SMTPAuthCramMD5, gomail.SMTPAuthPlain, gomail.SMTPAuthLogin}

// Connect opens a session: connected, encrypted, logged in. Its error is
// ErrUnavailable. The caller closes the session.
func (s *Server) Connect(ctx context.Context) (*Session, error) {
	session := &Session{server: s}
	if err := s.connect(ctx, session); err != nil {
		if session.conn != nil {
			_ = session.conn.Close() // after some errors the library leaves it open
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("connect to mail server: %w: %w", ErrUnavailable, err)
	}
	return session, nil
}

func (s *Server) connect(ctx context.Context, session *Session) error {
	stop := func() bool { return true }
	defer func() { stop() }()
	dial := func(dialing context.Context, network, address string) (net.Conn, error) { // dialing ends before connect does
		conn, err := new(net.Dialer).DialContext(dialing, network, address)
		if err != nil {
			return nil, err
		}
		session.conn = conn
		stop = context.AfterFunc(ctx, func() { _ = conn.Close() }) // the library's handshakes take no context
		if s.Security == Implicit {
			return tls.Client(conn, s.tls()), nil
		}
		return conn, nil
	}
	policy := gomail.NoTLS // for Implicit, dial starts TLS
	if s.Security == StartTLS {
		policy = gomail.TLSMandatory
	}
	options := []gomail.Option{gomail.WithPort(s.Port), gomail.WithTLSPolicy(policy), gomail.WithTLSConfig(s.tls()),
		gomail.WithHELO(s.Name), gomail.WithTimeout(s.Timeout), gomail.WithDialContextFunc(dial),
		gomail.WithoutSMTPUTF8()} // not needed, since addresses are ASCII and headers encoded, and not every server has it
	if s.User != "" {
		options = append(options, gomail.WithUsername(s.User), gomail.WithPassword(s.Password),
			gomail.WithOpportunisticSMTPAuth(mechanisms...))
	}
	// One client for each session, since a client changes its own fields while it connects.
	client, err := gomail.NewClient(s.Host, options...)
	if err != nil {
		return err
	}
	session.client, err = client.DialToSMTPClientWithContext(ctx)
	var reply *textproto.Error
	if errors.As(err, &reply) {
		if reply.Code == authRefused {
			return fmt.Errorf("%w: %s", ErrLogin, words(reply))
		}
		return errors.New(words(reply))
	}
	return err
}

// authRefused is the reply to a wrong user or password (RFC 4954).
const authRefused = 535

func (s *Server) tls() *tls.Config {
	return &tls.Config{ServerName: s.Host, RootCAs: s.Roots, MinVersion: tls.VersionTLS12}
}
