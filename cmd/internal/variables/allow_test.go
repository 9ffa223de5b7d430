package variables_test

import (
	"slices"
	"testing"

	"github.com/twoqueue/twoqueue/cmd/internal/variables"
	"github.com/twoqueue/twoqueue/verifier"
)

func TestAColonOrACommaMayBePartOfAName(t *testing.T) {
	for text, want := range map[string][]verifier.Allow{
		`:emails, orders:*`:        {{RoutingKey: "emails"}, {Exchange: "orders", RoutingKey: "*"}},
		`urn\:shop\:orders:placed`: {{Exchange: "urn:shop:orders", RoutingKey: "placed"}},
		`x:a:b`:                    {{Exchange: "x", RoutingKey: "a:b"}},
		`a\,b:c\,d,:e`:             {{Exchange: "a,b", RoutingKey: "c,d"}, {RoutingKey: "e"}},
		`back\\:key`:               {{Exchange: `back\`, RoutingKey: "key"}},
		`x:a\b`:                    {{Exchange: "x", RoutingKey: `a\b`}},
	} {
		var got variables.Allow
		if err := got.Decode(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", text, []verifier.Allow(got), err, want)
		}
	}
	if err := new(variables.Allow).Decode(`urn\:shop`); err == nil {
		t.Error("without a colon that divides, the pattern is taken")
	}
	for _, target := range [][2]string{{"", "emails"}, {"urn:shop", `a:\:b`}, {`\`, `\\,`}, {"a,b", "c,d"}} {
		text := variables.TargetText(target[0], target[1])
		if exchange, key, ok := variables.Target(text); !ok || exchange != target[0] || key != target[1] {
			t.Errorf("%q is read as %q and %q", text, exchange, key)
		}
	}
}
