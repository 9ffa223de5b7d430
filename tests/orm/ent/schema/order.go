// Package schema describes the shop's table to ent.
package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/schema/field"
)

// Order is a row of orders.
type Order struct{ ent.Schema }

// Fields are the columns; the ID is ent's own.
func (Order) Fields() []ent.Field { return []ent.Field{field.String("body")} }
