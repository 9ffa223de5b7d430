// Package crash kills processes with SIGKILL at exactly the points of the table in
// package bridge ('What happens at a crash'), and servers in the middle of traffic, and
// checks from the database and the queues what follows.
//
// The test binary runs itself once more as the victim. The victim reaches its
// point, says so on its standard output, and stays there until the parent kills
// it. No product code knows of this: the victim wraps its ledger, and a valve of
// the parent between victim and broker holds back the confirms.
//
// Every message belongs to an order, a row of the business table that is
// inserted in the same transaction. So the database itself says, whoever was
// killed when, which messages must have been delivered.
//
// Servers, and processes at random moments, are killed few times; with -crash.long ten
// times as often.
package crash
