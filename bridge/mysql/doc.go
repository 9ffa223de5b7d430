// Package mysql keeps the ledger and the inbox in a MySQL database, version 8.0.16 or later, or in
// a MariaDB database, 10.6 or later. This comment explains how these databases keep the promises of
// package driver; statements.go has the statements, each with its reason.
//
//	db, err := sql.Open("mysql", "user:password@tcp(host:3306)/database")
//	err = migrate.Ledger(ctx, db, migrate.MySQL)
//	ledger, err := mysql.Open(ctx, db)
//
// It works over database/sql with github.com/go-sql-driver/mysql, which the program imports, and
// depends on none of its parameters. Set readTimeout, to a minute or more: without it the driver's
// COMMIT and ROLLBACK to a vanished database host wait until TCP gives up, a quarter of an hour on
// Linux, whatever the context.
//
// # Releases
//
// The tests run on MariaDB 10.11 and 11.8 and on MySQL 9.7. The other releases are supported by
// their documentation: every statement uses only features that MySQL 8.0.16 and MariaDB 10.6 have
// (JSON_TABLE, SKIP LOCKED, expressions as defaults, CHECK), and none that a later release removed.
// Joins force their index; MySQL's manual announces that FORCE INDEX will be removed one day (MySQL
// 8.4 Reference Manual, 'Index Hints').
//
// MariaDB has innodb_snapshot_isolation ON since 11.6.2. At REPEATABLE READ a statement then fails
// with error 1020 if it meets a row that has changed since the transaction first read, and the
// transaction has ended as after a deadlock (MDEV-35235). So an inbox's Claim can return that error
// instead of false if the transaction has read before. Cancel can return it even as the first
// statement, if it waits for a verifier's claim. Roll back and try again.
//
// # How it waits
//
// SELECT … LOCK IN SHARE MODE by primary key waits for an open transaction that has inserted the
// row. It returns the row after that transaction's commit, and nothing after its rollback (or its
// session's end, or its return to a savepoint). Settle sends it alone, at READ COMMITTED, where it
// locks nothing if it finds nothing. innodb_lock_wait_timeout bounds the wait, in whole seconds: a
// wait of 150 ms takes a second. The non-waiting lookup is a plain SELECT, alone at READ COMMITTED
// whatever the connection's default is.
//
// Settle, and the read of the sweep's watermark, check that the server takes writes: after a
// failover or behind a proxy a pool may reach a replica, which has no locks of the sender's. Every
// outcome names the server, by server_uuid (MySQL), hostname, port, server_id and the second of its
// start. A verifier believes one server only. A server that restarts within a second of its start
// keeps its name.
//
// The server keeps the transaction of a client whose host has vanished, and its locks, for
// wait_timeout, eight hours by default. So lookups, Forget, Claim and Touch are single statements
// that the server commits itself, and Sweep sets wait_timeout to a minute for its connection. Leave
// autocommit on in the DSN: if it is 0, a client that vanishes just before the COMMIT leaves its
// locks.
//
// # Durability
//
// Without a binary log InnoDB shows a commit to others before it is on the disk. A crash of the
// server in between undoes the transaction (MySQL bugs 74303 and 119759). Measured on MariaDB
// 10.11: of 10,370 rows found by lookups without a flush, 7 were gone after 12 kills of the server;
// of 16,508 found by lookups with a flush, none after 24. With a binary log that the server does
// not wait for (sync_binlog is not 1) a crash of the machine does the same (MySQL bug 75519; not
// measured). A binary log within InnoDB (binlog_storage_engine, MariaDB 12.3) ignores sync_binlog,
// and counts as none; no such server was tested.
//
// So unless log_bin is on and sync_binlog is 1, as by default on MySQL but not on MariaDB, both
// lookups flush InnoDB's log before they return a row as committed: they insert and delete a row of
// bridge_ledger, also with an own table, and commit. Concurrent lookups share a flush. While the
// server is read-only, such a lookup fails.
//
// Semi-synchronous replication with AFTER_COMMIT, MariaDB's default, also shows a commit before the
// replica has it: a failover in between undoes a transaction whose row was seen. On MariaDB both
// lookups then write in the same way, and that COMMIT waits for the replica. While the replica is
// away, it waits until the driver's readTimeout; then the lookup fails, and its error names the
// replica. If rpl_semi_sync_master_timeout (10 s by default) passes first, the server commits
// without a replica, and the row counts as committed. On MySQL the lookups cannot read these
// variables, which belong to a plugin: keep its default, AFTER_SYNC.
//
// Transactions left out of the binary log (binlog_do_db, binlog_ignore_db, sql_log_bin = 0) are not
// protected, and the lookups cannot see that. Do not use these settings in a database with a
// ledger.
//
// # Carried messages
//
// Record sends a carried message as base64 in the text of the INSERT. So the message must be
// somewhat smaller than three quarters of max_allowed_packet: 12 MiB on MariaDB and 48 MiB on MySQL
// by default. Messages of 16 MiB, the default of sender.Options.MaxMessageBytes, need 22 MiB: on
// MariaDB raise max_allowed_packet, or lower MaxMessageBytes. A Record of a larger message fails.
// The inbox's pending and kept messages have the same limit.
//
// Due also reads the messages, for their lengths (MariaDB 10.11: 1,000 rows in 5 ms, in 10 ms with
// 64 KiB each). It also reads the index entries of deleted rows, until the server purges them,
// which happens only when no old transaction may still see them. Orphans reads the whole ledger: a
// million rows in some seconds, measured on MariaDB.
//
// # Rights
//
// migrate.Rights returns the rights of each role, and bridgectl grants prints them. In addition:
//
//   - With a table of the application's own, sender and verifier need SELECT on its column.
//   - Before MySQL 8.0.22 a SELECT … FOR SHARE, the server's reading of LOCK IN SHARE MODE, needs
//     in addition to SELECT one of DELETE, UPDATE and LOCK TABLES on each of its tables (MySQL 8.0
//     Reference Manual, 'SELECT Statement'; no such server was tested). So a verifier needs LOCK
//     TABLES on the database, for bridge_identity and a table of the application's own.
//   - A verifier with REPLICA MONITOR (on MySQL, REPLICATION CLIENT) notices that it works on a
//     replica that is not read-only.
//   - To see the holders of a row an Inspector needs PROCESS, and on MySQL also SELECT on
//     performance_schema.*. Without these rights there is no answer. The holder's program, and the
//     last statement of an idle session, also need SELECT on performance_schema.* on MariaDB, and
//     performance_schema on, with its consumer events_statements_current.
//
// # Requirements
//
//   - All senders and verifiers use one primary. If several nodes take writes, no node waits for
//     the locks of another. Check refuses a Galera node, and group replication with several
//     primaries. It refuses two primaries that replicate to each other only if it has the right to
//     read the status (above). Replicas must be read-only.
//   - The server ends a transaction at a deadlock (error 1213, on MariaDB also 1020), at any
//     statement on tables (CREATE, ALTER, TRUNCATE), and at an error 1205 under
//     innodb_rollback_on_timeout. Later statements, a Record too, are then committed one by one. So
//     ignore no error of a statement, and put no statement on tables into the transaction.
//     sender.InTx and package idempotency's Handle notice it (bridge.ErrTxEnded), by a savepoint at
//     the beginning that they release before the COMMIT: two round trips. HandleWithClaim notices
//     that its claim is gone. SendTx and StageTx cannot notice it. A SELECT may report its deadlock
//     in place of a row: read its rows to the end and check Rows.Err. Rows that are closed earlier
//     do not report it.
//   - binlog_format is ROW or MIXED, as by default. With STATEMENT the server refuses to delete at
//     READ COMMITTED.
//   - innodb_flush_log_at_trx_commit stays 1, or a crash of the server can undo a transaction whose
//     message has been forwarded. A failover to a replica that lagged behind can do so too. If that
//     matters, replicate semi-synchronously with AFTER_SYNC, and with a time-out
//     (rpl_semi_sync_master_timeout, rpl_semi_sync_source_timeout) that never passes: after it
//     commits wait for no replica any more.
//   - In group replication with one primary, group_replication_consistency is not EVENTUAL, the
//     default before MySQL 8.4. Check refuses it: a newly elected primary would show its state
//     before it has applied the transactions of the old one, and these would look rolled back.
//   - A receiver's server has log_bin on, with sync_binlog = 1 and no binlog_storage_engine:
//     MySQL's default, not MariaDB's. Otherwise a crash of the server can undo a transaction of one
//     receiver whose claim another receiver has just seen ('Durability', above). This matters only
//     if the first lost its connection to the broker while it committed, so that the same delivery
//     came to both.
//   - A copy of a database has the original's identity. Change it before the copy gets a verifier:
//     bridgectl identity new, or migrate.NewIdentity.
//   - The UUIDs of a table of the application's own are in their own order of bytes, not swapped by
//     UUID_TO_BIN(id, 1).
package mysql
