package environment

import "testing"

func TestNearest(t *testing.T) {
	known := map[string]bool{"SHOP_ALLOW": true, "SHOP_DRAIN": true}
	for text, want := range map[string]string{
		"SHOP_ALOW": "SHOP_ALLOW", "SHOP_DRIAN": "SHOP_DRAIN", "SHOP_ALLOWED": "SHOP_ALLOW", "SHOP_COLOUR": "",
	} {
		if got := nearest(text, known); got != want {
			t.Errorf("%s: %q, not %q", text, got, want)
		}
	}
}
