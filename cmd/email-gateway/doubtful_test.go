package main

import (
	"strings"
	"testing"
	"unicode"
)

// A recipient, an ID and a mail server's answer can contain any character.
func TestTheListOfDoubtfulEmailsIsSafeOnATerminal(t *testing.T) {
	var text strings.Builder
	if err := write(&text, []row{{ID: "id\x1b[2J", State: "doubtful", To: []string{"a\u009b31m@example.org"}, Error: "550\r\x7fno\u202e"}}); err != nil {
		t.Fatal(err)
	}
	for _, r := range text.String() {
		if !unicode.IsPrint(r) && r != '\n' {
			t.Errorf("%q is in %q", r, text.String())
		}
	}
	if !strings.Contains(text.String(), "@example.org") || strings.Count(text.String(), "\n") != 2 {
		t.Errorf("%q", text.String())
	}
}
