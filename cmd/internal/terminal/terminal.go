// Package terminal writes text so that a terminal shows it and does not act on it. Text from
// messages and servers needs this: an attacker may have written it.
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

// Plain replaces the characters of a text on which a terminal would act instead of showing them, and
// puts the text on one line.
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

// Wrap breaks text between words into lines of at most width characters. It returns at least one
// line. A longer word is a line of its own.
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

// JSON writes a value as indented JSON, and escapes the characters that Plain replaces.
// encoding/json alone does not escape DEL, the control characters from U+0080 on (U+009B works like
// ESC [), and the characters that turn the direction of a line.
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
