package transport_test

import (
	"context"
	"crypto/x509"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/twoqueue/twoqueue/cmd/email-gateway/internal/transport"
	"github.com/twoqueue/twoqueue/tests/emailgateway/mailserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = 2 * time.Minute
	short    = time.Second
	from     = "shop@example.org"
	text     = "Subject: hello\r\nMessage-Id: <1@example.org>\r\n\r\nA line.\r\n.\r\n..\r\nThe end.\r\n"
)

var to = []string{"ann@example.org", "bob@example.org", "eve@example.org"}

// server returns a transport.Server for s, without encryption.
func server(t *testing.T, s *mailserver.Server) *transport.Server {
	t.Helper()
	port, err := strconv.Atoi(s.Port)
	if err != nil {
		t.Fatal(err)
	}
	return &transport.Server{Host: s.Host, Port: port, Security: transport.None, Name: "gateway.test", Timeout: patience, Answer: patience}
}

func connect(t *testing.T, s *transport.Server) *transport.Session {
	t.Helper()
	session, err := s.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(session.Close)
	return session
}

var fates = []error{transport.ErrUnavailable, transport.ErrTemporary, transport.ErrPermanent, transport.ErrDoubtful}

// wantFate checks that err is the error want of this package, and no other.
func wantFate(t *testing.T, err, want error) {
	t.Helper()
	for _, fate := range fates {
		if errors.Is(err, fate) != (fate == want) {
			t.Fatalf("%v; want %v", err, want)
		}
	}
	if want == nil && err != nil {
		t.Fatal(err)
	}
	if err != nil && strings.Contains(err.Error(), "@") {
		t.Errorf("an address in the error: %v", err)
	}
	if err != nil && strings.ContainsAny(err.Error(), "\r\n") {
		t.Errorf("more than a line: %q", err)
	}
	t.Log(err)
}

func TestTheMomentOfAFailureDecidesItsKind(t *testing.T) {
	long := text + strings.Repeat(strings.Repeat("x", 70)+"\r\n", 400_000) // more than all buffers between client and server hold
	temporary, permanent, doubtful := transport.ErrTemporary, transport.ErrPermanent, transport.ErrDoubtful
	for name, c := range map[string]struct {
		at     mailserver.Moment
		action mailserver.Action
		text   string
		fate   error
		taken  int
		alive  bool // the session can be used again
	}{
		"4xx to MAIL":   {mailserver.Mail, mailserver.Action{Reply: 451}, text, temporary, 0, true},
		"5xx to MAIL":   {mailserver.Mail, mailserver.Action{Reply: 550}, text, permanent, 0, true},
		"drop at MAIL":  {mailserver.Mail, mailserver.Action{Drop: true}, text, temporary, 0, false},
		"stall at MAIL": {mailserver.Mail, mailserver.Action{Stall: true}, text, temporary, 0, false},

		"4xx to RCPT":   {mailserver.Rcpt, mailserver.Action{Reply: 450}, text, temporary, 0, true},
		"5xx to RCPT":   {mailserver.Rcpt, mailserver.Action{Reply: 550}, text, permanent, 0, true},
		"drop at RCPT":  {mailserver.Rcpt, mailserver.Action{Drop: true}, text, temporary, 0, false},
		"stall at RCPT": {mailserver.Rcpt, mailserver.Action{Stall: true}, text, temporary, 0, false},

		"4xx to DATA":   {mailserver.Data, mailserver.Action{Reply: 451}, text, temporary, 0, false},
		"5xx to DATA":   {mailserver.Data, mailserver.Action{Reply: 554}, text, permanent, 0, false},
		"drop at DATA":  {mailserver.Data, mailserver.Action{Drop: true}, text, temporary, 0, false},
		"stall at DATA": {mailserver.Data, mailserver.Action{Stall: true}, text, temporary, 0, false},

		"drop in a long text":  {mailserver.Text, mailserver.Action{Drop: true}, long, temporary, 0, false},
		"drop in a short text": {mailserver.Text, mailserver.Action{Drop: true}, text, doubtful, 0, false},

		"4xx after the dot":   {mailserver.Answer, mailserver.Action{Reply: 452}, text, temporary, 0, true},
		"5xx after the dot":   {mailserver.Answer, mailserver.Action{Reply: 554}, text, permanent, 0, true},
		"drop after the dot":  {mailserver.Answer, mailserver.Action{Drop: true}, text, doubtful, 1, false},
		"stall after the dot": {mailserver.Answer, mailserver.Action{Stall: true}, text, doubtful, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := mailserver.Start(t, mailserver.Options{})
			s.Do(mailserver.First(c.at, 1, c.action))
			reached := server(t, s)
			if c.action.Stall {
				reached.Timeout, reached.Answer = short, short
			}
			session := connect(t, reached)
			wantFate(t, session.Send(t.Context(), from, to[:1], []byte(c.text)), c.fate)
			if alive := session.Ready(t.Context()); alive != c.alive {
				t.Errorf("the session is alive: %v", alive)
			}
			if !c.alive {
				session = connect(t, server(t, s))
			}
			wantFate(t, session.Send(t.Context(), from, to[1:2], []byte(text)), nil)
			taken := s.Taken()
			if len(taken) != c.taken+1 || taken[c.taken].To[0] != to[1] || taken[c.taken].From != from {
				t.Errorf("taken %v", taken)
			}
			if got := taken[c.taken].Text; got != text {
				t.Errorf("text %q", got)
			}
		})
	}
}

func TestAnEmailGoesToAllRecipientsOrToNone(t *testing.T) {
	for name, c := range map[string]struct {
		refused map[string]int
		fate    error
		words   string
	}{
		"one of three, later":      {map[string]int{to[1]: 450}, transport.ErrTemporary, "recipient 2 of 3"},
		"one of three, for good":   {map[string]int{to[2]: 550}, transport.ErrPermanent, "recipient 3 of 3"},
		"one later, one for good":  {map[string]int{to[0]: 451, to[1]: 550}, transport.ErrPermanent, "recipient 1, 2 of 3"},
		"all of three, for good":   {map[string]int{to[0]: 550, to[1]: 550, to[2]: 550}, transport.ErrPermanent, "recipient 1, 2, 3 of 3"},
		"all of three are welcome": {nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := mailserver.Start(t, mailserver.Options{})
			s.Do(func(v mailserver.Visit) mailserver.Action {
				return mailserver.Action{Reply: c.refused[v.Recipient]}
			})
			err := connect(t, server(t, s)).Send(t.Context(), from, to, []byte(text))
			wantFate(t, err, c.fate)
			if c.fate != nil && (!strings.Contains(err.Error(), c.words) || len(s.Taken()) > 0) {
				t.Errorf("%v; taken %v", err, s.Taken())
			}
			if c.fate == nil && (len(s.Taken()) != 1 || len(s.Taken()[0].To) != 3) {
				t.Errorf("taken %v", s.Taken())
			}
		})
	}
}

func TestAServerWithoutASessionIsUnavailable(t *testing.T) {
	t.Run("refuses the connection", func(t *testing.T) {
		s := mailserver.Start(t, mailserver.Options{})
		s.Close()
		_, err := server(t, s).Connect(t.Context())
		wantFate(t, err, transport.ErrUnavailable)
	})
	for name, action := range map[string]mailserver.Action{
		"4xx as its greeting": {Reply: 421}, "5xx as its greeting": {Reply: 554}, "drops": {Drop: true}, "stalls": {Stall: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := mailserver.Start(t, mailserver.Options{})
			s.Do(mailserver.Always(mailserver.Greeting, action))
			reached := server(t, s)
			reached.Timeout = short
			_, err := reached.Connect(t.Context())
			wantFate(t, err, transport.ErrUnavailable)
		})
	}
}

func TestTheEndOfTheContextEndsEveryWait(t *testing.T) {
	for at, fate := range map[mailserver.Moment]error{mailserver.Greeting: transport.ErrUnavailable,
		mailserver.Mail: transport.ErrTemporary, mailserver.Answer: transport.ErrDoubtful} {
		t.Run(string(at), func(t *testing.T) {
			s := mailserver.Start(t, mailserver.Options{})
			ctx, cancel := context.WithCancel(t.Context())
			s.Do(func(v mailserver.Visit) mailserver.Action {
				if v.Moment != at {
					return mailserver.Action{}
				}
				cancel()
				return mailserver.Action{Stall: true}
			})
			session, err := server(t, s).Connect(ctx)
			if err == nil {
				defer session.Close()
				err = session.Send(ctx, from, to, []byte(text))
			}
			wantFate(t, err, fate)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%v does not say why", err)
			}
		})
	}
}

func TestEncryptionAndLogin(t *testing.T) {
	config, authority := mailserver.Certificate(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	const password = "s3cret"
	for name, c := range map[string]struct {
		mail   mailserver.Options
		change func(*transport.Server)
		want   error
	}{
		"starttls":                {mailserver.Options{TLS: config}, nil, nil},
		"implicit":                {mailserver.Options{TLS: config, Implicit: true}, func(s *transport.Server) { s.Security = transport.Implicit }, nil},
		"starttls, login":         {mailserver.Options{TLS: config, User: "u", Password: password}, nil, nil},
		"implicit, login":         {mailserver.Options{TLS: config, Implicit: true, User: "u", Password: password}, func(s *transport.Server) { s.Security = transport.Implicit }, nil},
		"starttls is not offered": {mailserver.Options{}, nil, transport.ErrUnavailable},
		"an unknown authority":    {mailserver.Options{TLS: config}, func(s *transport.Server) { s.Roots = nil }, transport.ErrUnavailable},
		"an unknown authority, implicit": {mailserver.Options{TLS: config, Implicit: true},
			func(s *transport.Server) { s.Roots, s.Security = nil, transport.Implicit }, transport.ErrUnavailable},
		"wrong password": {mailserver.Options{TLS: config, User: "u", Password: password + "x"}, nil, transport.ErrLogin},
		"a password that would be seen": {mailserver.Options{User: "u", Password: password},
			func(s *transport.Server) { s.Security = transport.None }, transport.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			s := mailserver.Start(t, c.mail)
			reached := server(t, s)
			reached.Security, reached.Roots = transport.StartTLS, roots
			if c.mail.User != "" {
				reached.User, reached.Password = "u", password
			}
			if c.change != nil {
				c.change(reached)
			}
			session, err := reached.Connect(t.Context())
			if err == nil {
				defer session.Close()
				err = session.Send(t.Context(), from, to, []byte(text))
			}
			if !errors.Is(err, c.want) || err != nil && (!errors.Is(err, transport.ErrUnavailable) || strings.Contains(err.Error(), password)) {
				t.Errorf("%v; want %v", err, c.want)
			}
			t.Log(err)
		})
	}
}
