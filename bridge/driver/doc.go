// Package driver is what a database brings so that the bridge works on it. Packages
// postgres, sqlserver, mysql and sqlite implement it; packages sender, verifier and
// idempotency call it. An application opens a ledger and hands it on: it calls nothing of
// this package.
//
//	interface        who calls it            what it is
//	Recorder         sender                  record an ID in the caller's transaction
//	Parker           sender                  and park a message there
//	Ledger           verifier                Recorder, and look up, settle, forget
//	Unparker         verifier                take parked messages back
//	Sweeper          verifier                remove rows whose message is gone
//	ProvenElsewhere  Prove                   of a ledger that must not write canaries
//	Inbox            idempotency             claims and pending messages
//	Keeper           idempotency, in order   marks and kept messages, one per entity
//
// What operators ask of a database is in package inspect.
//
// [Prove] shows on the live database that a ledger waits, and [StageParked] takes parked
// messages back to the staging queue: both are the same for all databases.
//
// Whoever brings a database passes the suites of package ledgertest, which hold every
// promise made here.
package driver
