package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
)

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
