// Package driver defines the interfaces that connect the bridge to a database. Packages postgres,
// sqlserver, mysql and sqlite implement them; packages sender, verifier and idempotency call them.
// An application opens a ledger and passes it on; it does not call this package.
//
// # The whole seam
//
// A database implements a Ledger and an Inbox. These two have no methods of their own: they embed
// the parts that the callers take. No part has more than fifteen methods, not counting Identity,
// Features, DB and Transient.
//
//	interface         embeds                          taken by
//	Recorder          Fence                           sender
//	RecordedRows                                      verifier's session, monitor
//	Provable                                          proof
//	Ledger            all three                       verifier.New, proof.Prove
//
//	Transactions      Fence                           idempotency's engine
//	Claims            Transactions                    idempotency
//	PendingMessages   Claims                          idempotency/pending, metrics
//	Marks             Transactions                    idempotency/versions
//	Keeper            Marks                           its Ordered
//	Inbox             PendingMessages, Keeper         bridgectl
//
// A ledger lists in its [Features] which of the methods it denies. Callers never inspect its type.
//
// Package inspect has the interfaces for operators. The Inspector of each database implements them;
// the linker leaves it out of a program that does not call Inspect.
//
// Package proof stands above this one. It shows on the live database that a ledger waits, and
// returns it as a proof.Proven ledger, which believes outcomes of one [Instance] only. [Begin],
// which begins a transaction even if a pooled connection was lost, is the same for all databases
// too.
//
// A new database must pass the suites of package ledgertest, which test every promise made here.
//
// # Copies
//
// A copy of the database, and a primary that comes back after a failover, pass the proof (rule 6 of
// package bridge). So Committed, Settle and Recent return the answering [Instance], in the same
// statement. And a verifier drops nothing before Recent has returned a row that is younger than its
// session and whose message no verifier has staged again. (An own table denies Recent; there the
// time of staging counts.)
//
// # Carried messages
//
// A row may carry its message ([Entry]). The row and the message then commit together, so the
// commit need not wait for the broker: if the staged copy is lost, or was never published, a
// verifier publishes the message to the staging queue from the row. Forget deletes the row with the
// message.
//
// A carried row is due when its stage time has come: [PublishedGrace] after the record if the
// sender publishes the message, and otherwise at the time of the record, which shows that no copy
// can exist yet ([DueRow.Unpublished]). A delayed message's row gets the time that its sender wants
// ([Entry].NotBefore). All other times are read from the database's clock. Due lists the due rows.
// Claim moves the stage time of a row on, by one compare-and-set, and returns the message, so of
// several verifiers one publishes it. Touch moves the stage time of a row whose message the caller
// holds.
//
// A copy is only a hint, and is judged like every staged message. So a copy that is published too
// early, or twice, costs at most a duplicate with the same ID. A crash of the database may
// therefore undo a Touch. It may not undo a Claim: Cancel, which deletes a row in a sender's
// transaction while no copy of the message can exist, relies on it.
//
// # The sweep
//
// A row outlives its message if an operator purged or deleted a queue, if a crash of the database
// undid a DELETE (see package postgres), or if a verifier that acks first died before its DELETE.
// Only the sweep removes such rows. It recognises them by their age alone, since they look like
// rows whose message is still on its way. So it must lose no message even if it removes the wrong
// row.
//
// A message would be lost if the sweep removed the row of a commit, and a verifier then found no
// row, took that for a rollback and dropped the message. Four facts exclude that:
//
//  1. A staged message carries a time S that its sender took before it recorded the ID. Its row has
//     a time R, the time of the INSERT by the database's clock. So S <= R, except for the
//     difference of the two clocks. (R must not be the start of the transaction, which may be hours
//     before S.) Neither changes afterwards.
//  2. A sweep that removes the row first raises a watermark W above R, and commits W. W never
//     sinks.
//  3. A verifier whose Settle has found no row reads W afterwards (SweptBefore). If a sweep had
//     removed the row, the Settle came after the removal, so the reading shows a W above R.
//  4. The verifier drops the message only if S >= W plus the largest difference of the clocks. If a
//     sweep had removed the row, S <= R < W, so the message is not dropped: it goes to the dead
//     queue, because its outcome is unknown.
//
// This argument does not depend on durations: sweep and verifier may hang for hours between any two
// steps. If a sender sets no time S, its message never counts as younger than a watermark.
//
// The sweep never removes a carried row, however old: the row may be the only place that holds the
// message. So a carried message is never absent because of a sweep, and its verifier need not
// compare S with W.
//
// If the sweep has removed the wrong row, the message goes to the dead queue instead of its target.
// A message of a rolled-back transaction that was staged before W goes there too. To avoid both,
// the age must exceed the longest time from a Record to the forwarding, with the longest
// transaction and the longest outage, and no sweep may run while the staging queue holds messages
// of that age.
package driver
