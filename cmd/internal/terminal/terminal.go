// Package terminal writes what comes from messages and servers, where anybody may have put
// it, so that a terminal shows it and does not act on it.
package terminal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Plain takes out of a text whatever a terminal would act on instead of showing it, and puts
// it on one line.
func Plain(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case !unicode.IsPrint(r):
			return '\uFFFD'
		}
		return r
	}, text)
}

// Wrap breaks text between words into lines of at most width characters, one line at
// least. A longer word stands alone.
func Wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
			lines = append(lines, line)
			line = word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}

// JSON writes a value as indented JSON. Whatever Plain would take out is escaped:
// encoding/json leaves DEL, the control characters from U+0080 on, one of which is what
// ESC [ is, and those that turn the direction of a line as they are.
func JSON(w io.Writer, value any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return err
	}
	var safe bytes.Buffer
	safe.Grow(text.Len())
	for _, r := range text.String() { // outside of strings all is ASCII and no DEL
		switch {
		case r < 0x7f || unicode.IsPrint(r):
			safe.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&safe, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&safe, `\u%04x`, r)
		}
	}
	_, err := safe.WriteTo(w)
	return err
}
