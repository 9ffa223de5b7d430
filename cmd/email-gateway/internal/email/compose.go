package email

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	gomail "github.com/wneessen/go-mail"
)

const defaultType = "application/octet-stream"

// Compose makes the e-mail's text as it travels. Its Message-ID header comes from
// the bridge's message ID and the sender's domain: whoever composes the same
// message again gets the same one, and a mail server or a mailbox may know by it
// that it has the e-mail already.
func (e *Email) Compose(messageID string, now time.Time) ([]byte, error) {
	m := gomail.NewMsg(gomail.WithNoDefaultUserAgent())
	m.FromMailAddress(e.From)
	m.ToMailAddress(e.To...)
	m.Subject(e.Subject)
	m.SetDateWithValue(now)
	_, domain, _ := strings.Cut(e.From.Address, "@")
	m.SetMessageIDWithValue(messageID + "@" + domain)
	switch {
	case e.HTML == "":
		m.SetBodyString(gomail.TypeTextPlain, e.Text)
	case e.Text == "":
		m.SetBodyString(gomail.TypeTextHTML, e.HTML)
	default:
		m.SetBodyString(gomail.TypeTextPlain, e.Text)
		m.AddAlternativeString(gomail.TypeTextHTML, e.HTML)
	}
	for _, a := range e.Attachments {
		mediaType := a.Type
		if mediaType == "" {
			mediaType = defaultType
		}
		err := m.AttachReader(a.Name, bytes.NewReader(a.Content),
			gomail.WithFileContentType(gomail.ContentType(mediaType)), gomail.WithFileEncoding(gomail.EncodingB64))
		if err != nil {
			return nil, fmt.Errorf("compose e-mail: %w", err)
		}
	}
	var text bytes.Buffer
	if _, err := m.WriteTo(&text); err != nil {
		return nil, fmt.Errorf("compose e-mail: %w", err)
	}
	return text.Bytes(), nil
}
