package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
)

// unlogged lists the tables that a crash empties.
const unlogged = `SELECT c.relname FROM unnest($1::text::text[]) AS names(name)
JOIN pg_class c ON c.oid = to_regclass(names.name) WHERE c.relpersistence <> 'p' ORDER BY c.relname`

// checkLogged refuses tables that a crash empties: a verifier would drop the messages of committed
// transactions, and a receiver would handle all messages again. The names are quoted.
func checkLogged(ctx context.Context, db *sqlx.DB, names []string) error {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(name) + `"`
	}
	var found []string
	if err := db.SelectContext(ctx, &found, unlogged, "{"+strings.Join(quoted, ",")+"}"); err != nil {
		return fmt.Errorf("check that the tables are logged: %w", err)
	}
	if len(found) > 0 {
		return fmt.Errorf("%w: a crash of the server empties unlogged tables: %s: ALTER TABLE … SET LOGGED",
			bridge.ErrNoSchema, strings.Join(found, ", "))
	}
	return nil
}
