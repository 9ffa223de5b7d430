// Package crash kills processes with SIGKILL at exactly the points of the table in package bridge
// ('Crashes'), and servers in the middle of traffic. It then checks the
// consequences in the database and the queues.
//
// The test binary runs itself once more as the victim. The victim reaches its point, reports it
// on its standard output, and waits there until the parent kills it. No product code takes part:
// the victim wraps its ledger, and a valve of the parent between victim and broker holds back the
// confirms.
//
// Every message belongs to an order, a row of the business table that is inserted in the same
// transaction. So whichever process was killed at whatever time, the database says which messages
// must have been delivered.
//
// Kills of servers are few; with -crash.long there are ten times as many. Package faults kills
// processes at random moments, and the broker.
package crash
