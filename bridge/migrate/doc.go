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
// bridge_inbox_version; the ledger and the inbox refuse a version they do not know, with
// bridge.ErrNoSchema. Tables does the same for tables of a program's own.
//
// Each version is one transaction, so a crash leaves whole versions, and any number of
// processes may migrate at once; MySQL commits statement by statement, and the next call
// completes what a crash has left. A database is only ever brought forward: there is no
// way back, and a release refuses tables that a later one has made.
//
// It is a package of its own so that a program that only sends, verifies or
// receives links no migration library.
//
// Needed are the rights to create tables; the programs themselves need less (see
// the packages of the databases). On SQLite, give the connections a busy_timeout.
package migrate
