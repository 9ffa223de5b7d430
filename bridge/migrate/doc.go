// Package migrate creates the tables of the ledger and of the inbox, and updates them to the
// version of this release.
//
//	db, err := sql.Open("pgx", url)
//	err = migrate.Ledger(ctx, db, migrate.PostgreSQL) // the sender's database
//	err = migrate.Inbox(ctx, db, migrate.PostgreSQL)  // the receiver's
//
// Migrating needs the right to create tables. The programs themselves need fewer rights (see the
// packages of the databases). On SQLite, give the connections a busy_timeout. The commands verifier
// -migrate and bridgectl migrate do the same from a shell.
//
// Print writes the statements for an administrator who runs them by hand, and Version returns the
// version of the tables.
//
// Schema does all of this in a named schema of PostgreSQL or SQL Server, which must exist:
//
//	err = migrate.Schema("messaging").Ledger(ctx, db, migrate.PostgreSQL)
//
// The migrations are the SQL files under sql, one folder per database and part. goose applies them,
// and notes them in bridge_ledger_version and bridge_inbox_version. Tables applies a program's own
// migrations in the same way. The package is separate so that a program that only sends, verifies
// or receives links no migration library.
//
// Each version is one transaction, so a crash leaves whole versions. (MySQL commits statement by
// statement; the next call completes an interrupted version.) Any number of processes may migrate
// at once. There are no downgrades.
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
// Tables of a new version must work with the previous release. So a migration may add a table,
// an index that is not unique, and a column that may be null or has a default. The tables,
// columns, types, keys and rights that the previous release uses must stay. To remove
// something, stop using it in one version and remove it with the next.
//
// A release adds at most one version to each part. A migration that cannot keep this rule skips a
// number (00005 after 00003). Programs of the previous release then refuse the tables, and all must
// be stopped for the upgrade. For example, versions 3 and 4 of the ledger came with one release:
// version 4 has no table bridge_parked, which the release before (version 2) uses. That release
// refuses version 4.
//
// tests/upgrade runs both releases on the same tables. Try a new migration there.
package migrate
