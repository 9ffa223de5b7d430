package email

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/mail"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ErrRefused: the message cannot be made an e-mail, now or later. The text says
// where and why, without what the message says.
var ErrRefused = errors.New("not an e-mail")

// Limits bound what one e-mail may be.
type Limits struct {
	Bytes      int // of the message's body
	Recipients int
}

// An Email has been found to be safe to send.
type Email struct {
	From        *mail.Address
	To          []*mail.Address
	Subject     string
	Text        string
	HTML        string
	Attachments []Attachment
}

// An Attachment is a file.
type Attachment struct {
	Name    string
	Type    string
	Content []byte
}

// Recipients are the addresses alone.
func (e *Email) Recipients() []string {
	all := make([]string, len(e.To))
	for i, to := range e.To {
		all[i] = to.Address
	}
	return all
}

// Parse holds a message's body to the schema and to what no schema can say. Every
// error is ErrRefused.
func Parse(body []byte, limits Limits) (*Email, error) {
	email, err := parse(body, limits)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return email, nil
}

func parse(body []byte, limits Limits) (*Email, error) {
	if len(body) > limits.Bytes {
		return nil, fmt.Errorf("%d bytes are more than the limit of %d", len(body), limits.Bytes)
	}
	if !utf8.Valid(body) {
		return nil, errors.New("not UTF-8")
	}
	if err := validate(body); err != nil {
		return nil, err
	}
	var raw struct {
		From        string       `json:"from"`
		To          []string     `json:"to"`
		Subject     string       `json:"subject"`
		Text        string       `json:"text"`
		HTML        string       `json:"html"`
		Attachments []Attachment `json:"attachments"`
	}
	if err := json.Unmarshal(body, &raw); err != nil { // the schema does not decode base64
		return nil, fmt.Errorf("/attachments: %w", err)
	}
	if len(raw.To) > limits.Recipients {
		return nil, fmt.Errorf("/to: %d recipients are more than the limit of %d", len(raw.To), limits.Recipients)
	}
	email := &Email{Subject: raw.Subject, Text: raw.Text, HTML: raw.HTML, Attachments: raw.Attachments}
	var err error
	if email.From, err = mailbox(raw.From); err != nil {
		return nil, fmt.Errorf("/from: %w", err)
	}
	seen := make(map[string]bool)
	for i, text := range raw.To {
		to, err := mailbox(text)
		if err != nil {
			return nil, fmt.Errorf("/to/%d: %w", i, err)
		}
		if seen[to.Address] {
			return nil, fmt.Errorf("/to/%d: the same address again", i)
		}
		seen[to.Address] = true
		email.To = append(email.To, to)
	}
	return email, nil
}

// plainAddress is what every mail server takes, and what can neither end an
// SMTP command nor start another one.
var plainAddress = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?([.][A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$")

const maxAddress = 254

func mailbox(text string) (*mail.Address, error) {
	address, err := mail.ParseAddress(text)
	if err != nil {
		return nil, errors.New("not a mail address")
	}
	if len(address.Address) > maxAddress || !plainAddress.MatchString(address.Address) {
		return nil, errors.New("not a plain ASCII mail address")
	}
	// An encoded word (RFC 2047) may have brought back what the schema forbids.
	if strings.ContainsFunc(address.Name, unsafe) || !utf8.ValidString(address.Name) {
		return nil, errors.New("a control character in the name")
	}
	return address, nil
}

func unsafe(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp)
}
