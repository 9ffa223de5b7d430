// Package migrate creates the tables of the ledger and of the inbox, and brings
// them to the version of this release.
//
//	db, err := sql.Open("pgx", url)
//	err = migrate.Ledger(ctx, db, migrate.PostgreSQL) // the sender's database
//	err = migrate.Inbox(ctx, db, migrate.PostgreSQL)  // the receiver's
//
// Print writes the statements down instead, for an administrator who runs them by hand,
// and Version tells what there is. The commands verifier -migrate and bridgectl migrate
// are this package for those who run no Go.
//
// The migrations are the SQL files under sql, one folder per database and part,
// applied by goose, which notes them in bridge_ledger_version and
// bridge_inbox_version. Tables does the same for tables of a program's own.
//
// Each version is one transaction, so a crash leaves whole versions, and any number of
// processes may migrate at once; MySQL commits statement by statement, and the next call
// completes what a crash has left. A database is only ever brought forward: there is no
// way back.
//
// # Upgrading
//
// A release works with tables of its own version and of the next one, and refuses all
// others with bridge.ErrNoSchema. So an upgrade by one version stops nothing: migrate with
// the newer release while programs of the older one run; then replace these one by one.
// Meanwhile programs of the older release may start again, and migrate by it does nothing.
// Programs of the newer release refuse tables that were not migrated.
//
// # Writing a migration
//
// Tables of a new version must serve the release before it. So a migration may add a
// table, an index that is not unique, and a column that may be null or has a default. What
// the release before uses must stay: its tables, columns, types, keys and rights. What is
// to go is no longer used from one version on, and goes with the next.
//
// A release adds one version to each part at most. A migration that cannot keep this rule
// leaves out a number (00005 after 00003): programs of the release before then refuse the
// tables, and all must be stopped for the upgrade.
//
// tests/upgrade runs both releases on the same tables. Try a new migration there.
//
// It is a package of its own so that a program that only sends, verifies or
// receives links no migration library.
//
// Needed are the rights to create tables; the programs themselves need less (see
// the packages of the databases). On SQLite, give the connections a busy_timeout.
package migrate
