// Package driver is what a database must implement so that the bridge works on it. Packages
// postgres, sqlserver, mysql and sqlite implement it; packages sender, verifier and idempotency
// call it. An application opens a ledger and passes it on; it does not call this package.
//
// # The whole seam
//
//	interface            who calls it               its methods
//	Recorder             sender                     Fence, and Identity, Features, Record,
//	                                                Cancel
//	Fence                InTx, Handle and its like  Enter, Leave
//	Ledger               verifier, bridgectl        Recorder, and
//	                                                DB, Check,
//	                                                Instance, Committed, Settle, Recent, Forget,
//	                                                Due, Claim, Touch,
//	                                                Orphans, Sweep, SweptBefore,
//	                                                ProofLedger, FallBack, FellBack
//
//	Inbox                idempotency                Claim, Unclaim, and the four below
//	PendingMessages      idempotency/pending        AddPending, LookUp, ChangePending,
//	                                                AttachMessage, RemovePending,
//	                                                RemoveBarePending, TakePending,
//	                                                DoubtOverdue, ListPending, CountPending
//	Claims               idempotency, its purge     Claimed, Forget
//	Marks                idempotency/versions       Fence, and LockMark, SetMark, Transient
//	Keeper               its Ordered                Marks, and Keep, CountKept, FirstKept,
//	                                                Unkeep, KeptEntities
//
// A database implements all of them. A ledger says in its [Features] what it cannot do. Callers
// never ask for its type.
//
// What operators ask of a database is in package inspect. For each database a separate package
// answers, which an application does not link.
//
// [Prove] shows on the live database that a ledger waits, and returns it as a [Proven] ledger,
// which believes outcomes of one [Instance] only. [Begin] begins a transaction also if a pooled
// connection was lost. Both are the same for all databases.
//
// A new database must pass the suites of package ledgertest, which test every promise made
// here.
//
// # Copies
//
// A copy of a database, and a primary that comes back after a failover, have the ledger's identity
// and pass the proof. Rule 6 of package bridge keeps a verifier of theirs from dropping messages that
// were committed elsewhere, by two verbs. Committed, Settle and Recent return the [Instance] that
// answers, in the same statement; a Proven ledger believes the one that its proof covers. And
// Recent tells which committed rows were recorded within an age: a verifier drops nothing before
// it has found one that is younger than its session, and whose message no verifier has staged again.
//
// # Carried messages
//
// A row may carry its message ([Entry]). The row and the message then commit together, so the
// commit need not wait for the broker: if the staged copy is lost, or was never published, a
// verifier publishes the message to the staging queue from the row. Forget deletes the row with
// the message.
//
// A carried row has a stage time. A row is due when its stage time has come. A row whose message
// the sender publishes gets a stage time [PublishedGrace] after its record. A row whose message
// the sender does not publish gets the time of its record, which says that no copy can exist yet
// ([DueRow.Unpublished]). The row of a delayed message gets the time for which its sender asks
// ([Entry].NotBefore). All other times are read from the database's clock.
//
// Three verbs work on carried rows. Due lists the rows that are due. Claim moves the stage time of
// a row on and returns the message, which the caller then publishes. Claim is one
// compare-and-set of the stage time, so of several verifiers one gets the message. Claim holds no
// lock afterwards: after a crash the row is due again at its new stage time. Touch moves the stage
// time of a row whose message the caller holds, so that no other verifier publishes a copy. Both move it
// by the age of the row, from [StageAgainAfter] to [StageAgainWithin].
//
// Cancel takes a row back, in a transaction of the sender's, as long as no copy of its message can
// exist.
//
// A copy is only a hint, which is judged as every staged message is. So a copy that is published
// too early, or twice, costs at most a duplicate with the same ID. A Touch may therefore be undone
// by a crash of the database. A Claim may not: Cancel relies on it.
//
// # The sweep
//
// A row outlives its message if somebody purged or deleted a queue, if a crash of the database
// undid a DELETE (see package postgres), or if a verifier that acks first died before its
// DELETE. Only the sweep removes such rows. They cannot be told from rows whose message is
// still on its way. So the sweep goes by age, and if it is wrong, no message may be lost.
//
// A message would be lost if the sweep removed the row of a commit, and a verifier then found
// no row, took that for a rollback and dropped the message. Four things exclude that:
//
//  1. A staged message carries a time S that its sender took before it recorded the ID. Its row
//     has a time R, the time of the INSERT by the database's clock. So S <= R, except for the
//     difference of the two clocks. (R must not be the start of the transaction, which may be
//     hours before S.) Neither changes afterwards.
//  2. A sweep that removes the row first raises a watermark W above R, and commits
//     that; W never sinks.
//  3. A verifier whose Settle has found nothing reads W after it (SweptBefore). If a
//     sweep had removed the row, the Settle came after the removal, so the reading
//     shows a W above R.
//  4. The verifier drops the message only if S >= W plus the difference that the clocks may
//     have. If a sweep had removed the row, S <= R < W, so the message is not dropped: it goes
//     to the dead queue, because its outcome is unknown.
//
// This argument does not depend on how long anything takes: sweep and verifier may hang for
// hours between any two steps. If a sender sets no time S, its message is never certainly
// younger than a watermark.
//
// The sweep never removes a row that carries a message, however old the row is: the row may be the
// only place that holds the message. So the absence of a carried message is never due to a sweep,
// and its verifier need not compare S with W.
//
// If the sweep is wrong, the message goes to the dead queue instead of the target. So does a
// message of a rolled-back transaction that was staged before W. So the age must exceed the
// longest time from a Record to the forwarding, with the longest transaction and the longest
// outage. And there must be no sweep while the staging queue holds messages of that age.
package driver
