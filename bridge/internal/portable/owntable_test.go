package portable_test

import (
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

func TestNamesAreTakenApartAtTheDot(t *testing.T) {
	for text, want := range map[string][2]string{
		"orders":        {"", "orders"},
		"shop.orders":   {"shop", "orders"},
		`a"b.c'; -- d]`: {`a"b`, `c'; -- d]`},
		"":              {},
		".":             {},
		"shop.":         {},
		".orders":       {},
		"a.b.c":         {},
		"a\x00b":        {},
		"a\xffb":        {},
	} {
		schema, table, column, err := portable.Names(bridge.OwnTable{Table: text, Column: "id.x"})
		if want == ([2]string{}) {
			if err == nil {
				t.Errorf("%q is taken for a table", text)
			}
			continue
		}
		if err != nil || schema != want[0] || table != want[1] || column != "id.x" {
			t.Errorf("%q: %q, %q, %q, %v", text, schema, table, column, err)
		}
	}
}

func TestACanaryHasAnID(t *testing.T) {
	_, _, _, err := portable.Names(bridge.OwnTable{Table: "orders", Column: "id", Canary: "INSERT INTO orders (n) VALUES (1)"})
	if err == nil || !strings.Contains(err.Error(), "$id") {
		t.Errorf("%v", err)
	}
}

// A database reads the characters between the marks as the name and nothing else, and the last mark
// ends it.
func FuzzQuoteHoldsAnyName(f *testing.F) {
	for _, name := range []string{"orders", `"`, `""`, "`", "]", "]]", "[", `a"; DROP TABLE b; --`, `\`, `\"`, "'", "", "\x00", "ü\n"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		for _, mark := range []string{`"`, "`", "]"} {
			opening := strings.Replace(mark, "]", "[", 1)
			rest, opened := strings.CutPrefix(portable.Quote(name, mark), opening)
			if !opened {
				t.Fatalf("%q is not opened", name)
			}
			var read strings.Builder
			for {
				text, after, found := strings.Cut(rest, mark)
				if !found {
					t.Fatalf("%q with %s is not closed", name, mark)
				}
				read.WriteString(text)
				doubled := strings.HasPrefix(after, mark)
				if !doubled {
					rest = after
					break
				}
				read.WriteString(mark)
				rest = after[len(mark):]
			}
			if read.String() != name || rest != "" {
				t.Fatalf("%q with %s is read as %q, and then %q", name, mark, read.String(), rest)
			}
		}
	})
}
