// Package driver is what a database brings so that the bridge works on it. Packages
// postgres, sqlserver, mysql and sqlite implement it; packages sender, verifier and
// idempotency call it. An application opens a ledger and hands it on: it calls nothing of
// this package.
//
// # The whole seam
//
//	interface            who calls it               its methods
//	Recorder             sender                     Identity, Features, Record, Park
//	Ledger               verifier, bridgectl        Recorder, and
//	                                                DB, Check,
//	                                                Committed, Settle, Forget,
//	                                                Unpark, CountParked,
//	                                                Orphans, Sweep, SweptBefore,
//	                                                ProofLedger, FallBack, FellBack
//
//	Inbox                idempotency                Claim, Unclaim, and the four below
//	PendingMessages      AtMostOnce, Accept,        AddPending, LookUp, ChangePending,
//	                     Work, Resume               AttachMessage, RemovePending,
//	                                                RemoveBarePending, TakePending,
//	                                                DoubtOverdue, ListPending, CountPending
//	Claims               idempotency, its purge     Claimed, Forget
//	Marks                Latest, HighWater          LockMark, SetMark
//	Keeper               Ordered                    Marks, and Keep, CountKept, FirstKept,
//	                                                Unkeep, KeptEntities
//
// A database implements all of them. A ledger says in its [Features] what it cannot do.
// Nobody asks for its type.
//
// What operators ask of a database is beside the seam, in package inspect. A package of
// its own answers it for each database, which an application does not link.
//
// [Prove] shows on the live database that a ledger waits, and [StageParked] takes parked
// messages back to the staging queue: both are the same for all databases.
//
// Whoever brings a database passes the suites of package ledgertest, which hold every
// promise made here.
//
// # The sweep
//
// A row outlives its message if somebody purged or deleted a queue, if a crash of the
// database took a DELETE back (see package postgres), or if a verifier that acks first
// died before its DELETE. Only the sweep removes such rows, and nobody can tell them from
// rows whose message is still on its way. So the sweep goes by age, and must not cost a
// message when it is wrong.
//
// A message would be lost if a verifier finds no row, takes that for a rollback and drops
// the message, while the sweep has removed the row of a commit. These four things exclude
// it:
//
//  1. A staged message carries a time that its sender took before it recorded the
//     ID: staged at S. Its row has the time of the INSERT by the database's clock:
//     recorded at R. So S <= R, but for the difference of the two clocks. (R must be
//     the time of the INSERT. In a transaction that has been open for hours, its
//     start would be hours before S.) Unpark sets R again after staging.
//     StageParked took the new S before it published, so S <= R holds again.
//  2. A sweep that removes the row first raises a watermark W above R, and commits
//     that; W never sinks.
//  3. A verifier whose Settle has found nothing reads W after it (SweptBefore). If a
//     sweep had removed the row, the Settle came after the removal, so the reading
//     shows a W above R.
//  4. It drops the message only if S >= W plus what the clocks may differ by. If a
//     sweep had removed the row, S <= R < W, so it does not: the message goes to the
//     dead queue, as one of which nothing is known.
//
// This argument does not depend on how long anything takes: each of the two may hang for
// hours between any two steps. A message without the time S, from a sender that sets
// none, is never certainly younger than a watermark.
//
// A parked message keeps its row, since it has not gone through a queue yet. It loses that
// protection in the transaction that sets R.
//
// A wrong sweep sends its message to the dead queue instead of the target. The same
// happens to a message of a transaction that rolled back, if it was staged before W. So
// the age must be more than the longest time from a Record to the forwarding, through the
// longest transaction and the longest outage, and there must be no sweep while the staging
// queue holds messages of that age.
package driver
