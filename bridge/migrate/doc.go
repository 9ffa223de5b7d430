// Package migrate creates the tables of the ledger and of the inbox, and brings
// them to the version of this release.
//
//	err := migrate.Ledger(ctx, db, migrate.PostgreSQL) // the sender's database
//	err := migrate.Inbox(ctx, db, migrate.PostgreSQL)  // the receiver's
//
// The migrations are the SQL files under sql, one folder per database and part,
// applied by goose, which notes them in bridge_ledger_version and
// bridge_inbox_version; the ledger and the inbox refuse a version they do not know.
// Tables does the same for tables of a program's own.
//
// It is a package of its own so that a program that only sends, verifies or
// receives links no migration library.
//
// Needed are the rights to create tables; the programs themselves need less (see
// the packages of the databases). On SQLite, give the connections a busy_timeout.
package migrate
