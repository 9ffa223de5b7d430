package tds_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
)

func TestQuotedNamesAreNames(t *testing.T) {
	w := newWorld(t, nil, "ON")
	w.run(w.db, "CREATE SCHEMA shop")
	w.run(w.db, "CREATE TABLE [shop].[a]]; --'b] ([c, (d] uniqueidentifier UNIQUE)")
	first, second := uuid.NewString(), uuid.NewString()
	insert := "INSERT INTO shop.[a]]; --'b] ([c, (d]) VALUES ('" + first + "'), ('" + second + "')"
	w.run(w.db, insert)
	_, err := w.db.ExecContext(t.Context(), insert)
	expectError(t, 2627, err)
	_, err = w.db.ExecContext(t.Context(), strings.Replace(insert, first, "x"+first[1:], 1))
	expectError(t, 8169, err)
	_, err = w.db.ExecContext(t.Context(), "CREATE TABLE nowhere.a (id int)")
	expectError(t, 2760, err)
	w.run(w.db, "DROP TABLE [shop].[a]]; --'b]")
	_, err = w.db.ExecContext(t.Context(), insert)
	expectError(t, 208, err)
}
