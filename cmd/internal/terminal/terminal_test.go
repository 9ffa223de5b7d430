package terminal

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode"
)

// all has each kind of character: ESC, DEL, U+009B (which works like ESC [), one that turns the
// direction of the line, the end of a line, a character that cannot be printed and needs two
// escapes, and letters.
const all = "a\x1b[31m\x7f\u0080\u009b31m\u202e\u2028\U000e0001\r\n\t é<b>日😀"

func TestTheTextHasNothingThatATerminalActsOn(t *testing.T) {
	if got, want := Plain(all), "a\uFFFD[31m\uFFFD\uFFFD\uFFFD31m\uFFFD\uFFFD\uFFFD    é<b>日😀"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
	value := map[string]string{all: all}
	var text strings.Builder
	if err := JSON(&text, value); err != nil {
		t.Fatal(err)
	}
	for _, r := range text.String() {
		if !unicode.IsPrint(r) && r != '\n' {
			t.Errorf("%q is in %q", r, text.String())
		}
	}
	if !strings.Contains(text.String(), `\u009b31m`) || !strings.Contains(text.String(), "é<b>日😀") || strings.Count(text.String(), "\n") != 3 {
		t.Errorf("%s", text.String())
	}
	var back map[string]string
	if err := json.Unmarshal([]byte(text.String()), &back); err != nil || !reflect.DeepEqual(back, value) {
		t.Errorf("it means %q: %v", back, err)
	}
}
