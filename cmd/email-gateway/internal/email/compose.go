package email

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"mime"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	gomail "github.com/wneessen/go-mail"
)

const defaultType = "application/octet-stream"

// Compose returns the e-mail's MIME text. Its Message-ID header is the bridge's message ID with the
// sender's domain. It is the same each time the message is composed, so that a mail server or a
// mailbox can recognise a second copy.
func (e *Email) Compose(messageID string, now time.Time) ([]byte, error) {
	m := gomail.NewMsg(gomail.WithNoDefaultUserAgent())
	m.FromMailAddress(e.From)
	m.ToMailAddress(e.To...)
	m.Subject(encoded(e.Subject))
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
		err := m.AttachReader(a.Name, bytes.NewReader(a.Content), gomail.WithFileEncoding(gomail.EncodingB64), named(a))
		if err != nil {
			return nil, fmt.Errorf("compose e-mail: %w", err)
		}
	}
	var text bytes.Buffer
	if _, err := m.WriteTo(&text); err != nil {
		return nil, fmt.Errorf("compose e-mail: %w", err)
	}
	if err := checkLines(text.Bytes()); err != nil {
		return nil, fmt.Errorf("compose e-mail: %w", err)
	}
	return text.Bytes(), nil
}

// encodedBytes is the number of a text's bytes in one encoded word. In Base64 they are 60
// characters, and a word may have 75 (RFC 2047, 2).
const encodedBytes = 45

// encoded returns a header's text in a form that decodes to exactly the same text. Package mime, and
// so the library, leaves ASCII as it is, although a reader decodes ASCII that looks like an encoded
// word, and folding may drop spaces.
func encoded(text string) string {
	plain := strings.Join(strings.Fields(text), " ") == text && !strings.Contains(text, "=?")
	for word := range strings.SplitSeq(text, " ") {
		plain = plain && len(word) <= encodedBytes
	}
	if plain {
		return text
	}
	var words []string
	for word := ""; text != ""; word = "" {
		for text != "" {
			_, size := utf8.DecodeRuneInString(text)
			if len(word)+size > encodedBytes {
				break
			}
			word, text = word+text[:size], text[size:]
		}
		words = append(words, "=?UTF-8?B?"+base64.StdEncoding.EncodeToString([]byte(word))+"?=")
	}
	return strings.Join(words, " ")
}

// named sets the headers with an attachment's name, folded. The library would write each as one
// line, which with a long name exceeds the longest line allowed.
func named(a Attachment) gomail.FileOption {
	name := mime.BEncoding.Encode("UTF-8", fileName(a.Name))
	name = strings.ReplaceAll(name, "?= =?", "?=\r\n =?")
	return func(f *gomail.File) {
		f.Header.Set(string(gomail.HeaderContentType), a.Type+";\r\n name=\""+name+"\"")
		f.Header.Set(string(gomail.HeaderContentDisposition), "attachment;\r\n filename=\""+name+"\"")
	}
}

// fileName replaces the characters of a name that are special to file systems or end a quoted
// string in a header.
func fileName(name string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || strings.ContainsRune(`"/:<>?\|`, r) {
			return '_'
		}
		return r
	}, name)
}

// maxLine is how many bytes a line may have, without its end (RFC 5322, 2.1.1).
const maxLine = 998

// checkLines refuses a text in which CR or LF occurs alone. A mail server that takes one of them
// alone for the end of a line would see a line with an unstuffed dot, or another header.
func checkLines(text []byte) error {
	for line := range bytes.SplitSeq(text, []byte("\r\n")) {
		if len(line) > maxLine {
			return fmt.Errorf("%w: a line has more than %d bytes", ErrRefused, maxLine)
		}
		if bytes.ContainsAny(line, "\r\n\x00") {
			return fmt.Errorf("%w: a line contains a single CR or LF, or NUL", ErrRefused)
		}
	}
	return nil
}
