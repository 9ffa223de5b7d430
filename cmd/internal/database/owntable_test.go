package database

import (
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
)

func TestAnOwnTableIsATableAndTheColumnAfterTheLastDot(t *testing.T) {
	for text, want := range map[string]bridge.OwnTable{
		"orders.id":      {Table: "orders", Column: "id"},
		"shop.orders.id": {Table: "shop.orders", Column: "id"},
		"orders":         {},
		".id":            {},
		"orders.":        {},
		"":               {},
	} {
		var o OwnTable
		if err := o.Decode(text); (err == nil) != (want != bridge.OwnTable{}) || err == nil && o.own() != want {
			t.Errorf("%q is %+v, %v", text, o.own(), err)
		}
	}
}
