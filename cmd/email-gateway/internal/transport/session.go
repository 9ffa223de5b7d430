package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"github.com/wneessen/go-mail/smtp"
)

// A Session is one connection to the mail server. It is for one goroutine.
type Session struct {
	server *Server
	client *smtp.Client
	conn   net.Conn // under TLS, if there is any; closing it ends every wait
	over   bool
}

// Ready reports whether the session still works. It resets the state that a refused e-mail has left.
func (s *Session) Ready(ctx context.Context) bool {
	if s.over {
		return false
	}
	defer s.closeAt(ctx)()
	if s.wait(s.server.Timeout) != nil || s.client.Reset() != nil {
		s.drop()
	}
	return !s.over
}

// Send hands an e-mail to the server. Its error is ErrTemporary, ErrPermanent or ErrDoubtful, and
// contains no address. When ctx ends, Send closes the connection.
func (s *Session) Send(ctx context.Context, from string, to []string, text []byte) error {
	defer s.closeAt(ctx)()
	err := s.send(from, to, text)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w (%w)", err, context.Cause(ctx))
	}
	return err
}

func (s *Session) send(from string, to []string, text []byte) error {
	if err := s.command(func() error { return s.client.Mail(bracketed(from)) }); err != nil {
		return fmt.Errorf("sender: %w", err)
	}
	if err := s.recipients(to); err != nil {
		return err
	}
	var writer io.WriteCloser
	err := s.command(func() (err error) {
		writer, err = s.client.Data()
		return err
	})
	if err != nil {
		return fmt.Errorf("before the text: %w", err)
	}
	if err := s.write(writer, text); err != nil {
		s.drop() // so that nothing writes the dot
		return fmt.Errorf("in the text: %w: %w", ErrTemporary, plain(err))
	}
	// From here on the server may have the e-mail.
	err = s.wait(s.server.Answer)
	if err == nil {
		err = writer.Close() // writes the dot and waits for the answer
	}
	return s.answer(err)
}

// recipients sends all recipients, also after a refusal, so that the error lists every refused one.
func (s *Session) recipients(to []string) error {
	var refused error
	var which []string
	for i, address := range to {
		err := s.command(func() error { return s.client.Rcpt(bracketed(address)) })
		if err == nil {
			continue
		}
		which = append(which, strconv.Itoa(i+1))
		if refused == nil || errors.Is(err, ErrPermanent) && !errors.Is(refused, ErrPermanent) {
			refused = err
		}
		if s.over {
			break
		}
	}
	if refused == nil {
		return nil
	}
	return fmt.Errorf("recipient %s of %d: %w", strings.Join(which, ", "), len(to), refused)
}

// command runs one command before the dot, and classifies its error.
func (s *Session) command(run func() error) error {
	err := s.wait(s.server.Timeout)
	if err == nil {
		err = run()
	}
	var reply *textproto.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &reply) && permanent(reply.Code):
		return fmt.Errorf("%w: %s", ErrPermanent, words(reply))
	case errors.As(err, &reply):
		return fmt.Errorf("%w: %s", ErrTemporary, words(reply))
	}
	s.drop()
	return fmt.Errorf("%w: %w", ErrTemporary, plain(err))
}

// answer classifies the result of the dot.
func (s *Session) answer(err error) error {
	var reply *textproto.Error
	switch {
	case err == nil, errors.As(err, &reply) && reply.Code/100 == 2:
		return nil
	case errors.As(err, &reply) && permanent(reply.Code):
		return fmt.Errorf("after the text: %w: %s", ErrPermanent, words(reply))
	case errors.As(err, &reply) && reply.Code/100 == 4:
		return fmt.Errorf("after the text: %w: %s", ErrTemporary, words(reply))
	case reply != nil:
		err = errors.New(words(reply)) // a reply that SMTP does not define
	}
	s.drop()
	return fmt.Errorf("after the text: %w: %w", ErrDoubtful, plain(err))
}

// chunk is the number of bytes of a text that must be written within one Timeout.
const chunk = 64 << 10

func (s *Session) write(w io.Writer, text []byte) error {
	for len(text) > 0 {
		n := min(chunk, len(text))
		if err := s.wait(s.server.Timeout); err != nil {
			return err
		}
		if _, err := w.Write(text[:n]); err != nil {
			return err
		}
		text = text[n:]
	}
	return nil
}

// wait sets the deadline for the next reads and writes.
func (s *Session) wait(limit time.Duration) error { return s.conn.SetDeadline(time.Now().Add(limit)) }

// closeAt closes the connection when ctx ends, until the function that it returns
// is called.
func (s *Session) closeAt(ctx context.Context) func() bool {
	return context.AfterFunc(ctx, func() { _ = s.conn.Close() })
}

// drop closes the connection and writes nothing. The library's own methods write first, and would end
// an incomplete text with a dot.
func (s *Session) drop() {
	s.over = true
	_ = s.conn.Close()
}

// goodbye bounds the wait for a server's answer to QUIT.
const goodbye = time.Second

// Close ends the session in an orderly way, if it still works.
func (s *Session) Close() {
	if !s.over && s.wait(goodbye) == nil {
		_ = s.client.Quit() // the session is over even if this fails
	}
	s.drop()
}

func bracketed(address string) string { return "<" + address + ">" }
