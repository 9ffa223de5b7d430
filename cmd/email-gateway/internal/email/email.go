package email

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/mail"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ErrRefused: the message cannot become an e-mail, now or later. The text names the place and the
// reason, and repeats no value of the message.
var ErrRefused = errors.New("not an e-mail")

// ErrNotAllowed: the sender or a recipient is outside of Limits.From or Limits.To. The text names
// its place in the body, not the address.
var ErrNotAllowed = errors.New("address not allowed")

// Limits bound an e-mail.
type Limits struct {
	Bytes      int // of the message's body
	Recipients int
	From, To   Patterns // of the sender's and of each recipient's address
}

// Patterns are patterns of addresses, regardless of case, in which * stands for any characters. An
// address must match one of them. If there are none, every address is allowed.
type Patterns []string

func (p Patterns) match(address string) bool {
	matches := func(pattern string) bool { return matchesPattern(strings.ToLower(pattern), strings.ToLower(address)) }
	return len(p) == 0 || slices.ContainsFunc(p, matches)
}

func matchesPattern(pattern, text string) bool {
	pieces := strings.Split(pattern, "*")
	if len(pieces) == 1 {
		return pattern == text
	}
	text, found := strings.CutPrefix(text, pieces[0])
	last := pieces[len(pieces)-1]
	for _, piece := range pieces[1 : len(pieces)-1] {
		_, rest, ok := strings.Cut(text, piece)
		text, found = rest, found && ok
	}
	return found && strings.HasSuffix(text, last)
}

// allowed checks an e-mail's addresses.
func (l *Limits) allowed(e *Email) error {
	if !l.From.match(e.From.Address) {
		return fmt.Errorf("%w: /from", ErrNotAllowed)
	}
	for i, to := range e.To {
		if !l.To.match(to.Address) {
			return fmt.Errorf("%w: /to/%d", ErrNotAllowed, i)
		}
	}
	return nil
}

// An Email has passed all checks and is safe to send.
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

// Parse checks a message's body against the schema and against rules that no schema can state.
// Every error is ErrRefused, or ErrNotAllowed if the body is an e-mail.
func Parse(body []byte, limits Limits) (*Email, error) {
	email, err := parse(body, limits)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if err := limits.allowed(email); err != nil {
		return nil, err
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
	value, err := decode(body)
	if err != nil {
		return nil, err
	}
	if err := validate(value); err != nil {
		return nil, err
	}
	return fromValue(value, limits)
}

// fromValue makes an e-mail from a value that follows the schema.
func fromValue(value any, limits Limits) (*Email, error) {
	fields, _ := value.(map[string]any)
	email := &Email{Subject: stringIn(fields, "subject"), Text: stringIn(fields, "text"), HTML: stringIn(fields, "html")}
	if strings.ContainsFunc(email.Subject, unsafe) {
		return nil, errors.New("/subject: a control character")
	}
	var err error
	if email.From, err = mailbox(stringIn(fields, "from")); err != nil {
		return nil, fmt.Errorf("/from: %w", err)
	}
	to, _ := fields["to"].([]any)
	if email.To, err = mailboxes(to, limits.Recipients); err != nil {
		return nil, err
	}
	attachments, _ := fields["attachments"].([]any)
	for i, attachment := range attachments {
		file, err := newAttachment(attachment)
		if err != nil {
			return nil, fmt.Errorf("/attachments/%d%w", i, err)
		}
		email.Attachments = append(email.Attachments, file)
	}
	return email, nil
}

func stringIn(fields map[string]any, name string) string {
	text, _ := fields[name].(string)
	return text
}

func mailboxes(to []any, most int) (all []*mail.Address, err error) {
	if len(to) > most {
		return nil, fmt.Errorf("/to: %d recipients are more than the limit of %d", len(to), most)
	}
	seen := make(map[string]bool)
	for i, value := range to {
		text, _ := value.(string)
		address, err := mailbox(text)
		if err != nil {
			return nil, fmt.Errorf("/to/%d: %w", i, err)
		}
		if seen[address.Address] {
			return nil, fmt.Errorf("/to/%d: the same address again", i)
		}
		seen[address.Address] = true
		all = append(all, address)
	}
	return all, nil
}

// mediaType is the schema's pattern. It is checked here too, since the type is copied into a header.
var mediaType = regexp.MustCompile("^[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}$")

// newAttachment checks and decodes an attachment. Its error begins with the place in the attachment.
func newAttachment(value any) (Attachment, error) {
	fields, _ := value.(map[string]any)
	file := Attachment{Name: stringIn(fields, "name"), Type: stringIn(fields, "type")}
	if strings.ContainsFunc(file.Name, unsafe) {
		return file, errors.New("/name: a control character")
	}
	if file.Type == "" {
		file.Type = defaultType
	}
	if !mediaType.MatchString(file.Type) || strings.HasPrefix(strings.ToLower(file.Type), "multipart/") {
		return file, errors.New("/type: not a media type of a file")
	}
	var err error
	if file.Content, err = base64.StdEncoding.DecodeString(stringIn(fields, "content")); err != nil {
		return file, fmt.Errorf("/content: %w", err)
	}
	return file, nil
}

// plainAddress matches addresses that every mail server accepts, and that can neither end an SMTP
// command nor start another one.
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
	// Decoding an encoded word (RFC 2047) may have produced characters that the schema forbids.
	if strings.ContainsFunc(address.Name, unsafe) || !utf8.ValidString(address.Name) {
		return nil, errors.New("a control character in the name")
	}
	address.Name = strings.Join(strings.Fields(address.Name), " ") // folding a header reduces longer gaps to one space
	return address, nil
}

func unsafe(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp)
}
