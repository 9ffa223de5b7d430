// Package migrate creates the tables of the ledger and of the inbox, and updates them to the
// version of this release.
//
//	db, err := sql.Open("pgx", url)
//	err = migrate.Ledger(ctx, db, migrate.PostgreSQL) // the sender's database
//	err = migrate.Inbox(ctx, db, migrate.PostgreSQL)  // the receiver's
//
// Migrating needs the right to create tables. On SQLite, give the connections a busy_timeout. The
// commands verifier -migrate and bridgectl migrate do the same from a shell.
//
// The migrations are the SQL files under sql, one folder per database and part. goose applies them,
// and notes them in bridge_ledger_version and bridge_inbox_version. The package is separate so that
// a program that only sends, verifies or receives links no migration library.
//
// Each version is one transaction, so a crash leaves whole versions. (MySQL commits statement by
// statement; the next call completes an interrupted version.) Any number of processes may migrate
// at once. There are no downgrades. On PostgreSQL and SQL Server a migration waits at most 3 s,
// five times, for a table's lock. If a transaction holds the lock for longer, the migration fails:
// call it again.
//
// # Rights
//
// [Rights] returns the least rights of each [Role], and bridgectl grants prints them as statements.
// A login that does less than its role needs less:
//
//	Handle, HandleBatch        SELECT on bridge_inbox_version and INSERT on bridge_inbox, for
//	                           HandleBatch on PostgreSQL also SELECT; SELECT and DELETE, to purge
//	                           old keys, unless idempotency.Options.Retention is negative
//	package versions           SELECT on bridge_inbox_version and SELECT, INSERT and UPDATE on
//	                           bridge_mark; for Ordered also SELECT, INSERT and DELETE on
//	                           bridge_kept
//	package pending            the role effects
//	a verifier that does not   no UPDATE of stage_at and claimed_by, and no EXECUTE on bridge_due,
//	stage carried messages     bridge_claim and bridge_touch. On PostgreSQL its sweep needs UPDATE
//	                           of stage_at, for its FOR UPDATE
//	a verifier without a sweep no UPDATE on bridge_watermark
//
// The package of each database names rights that depend on its server.
//
// # Upgrading
//
// A release works with tables of its own version and of the next one, and refuses all others with
// bridge.ErrNoSchema. So an upgrade by one version stops nothing: migrate with the newer release
// while programs of the older one run, then replace these one by one. Meanwhile programs of the
// older release may restart, and its migrate does nothing. Programs of the newer release refuse
// tables before their migration.
//
// # Writing a migration
//
// Tables of a new version must work with the previous release. So a migration may add a table, an
// index that is not unique, and a column that may be null or has a default. The tables, columns,
// types, keys and rights that the previous release uses must stay. To remove something, stop using
// it in one version and remove it with the next.
//
// A release adds at most one version to each part. A migration that cannot keep this rule skips a
// number (00005 after 00003). Programs of the previous release then refuse the tables, and all must
// be stopped for the upgrade. tests/upgrade runs both releases on the same tables: try a new
// migration there.
package migrate
