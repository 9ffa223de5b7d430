// Package sendertest has a sender for unit tests: no broker, no verifier, and no database unless
// you have one.
//
//	func TestAnOrderSendsAnEmail(t *testing.T) {
//		s := sendertest.New(t, nil)
//		if err := placeOrder(t.Context(), s.DB, s.Sender, "two apples"); err != nil {
//			t.Fatal(err)
//		}
//		sent := s.Committed()
//		if len(sent) != 1 || sent[0].RoutingKey != "emails" || string(sent[0].Publishing.Body) != "two apples" {
//			t.Errorf("sent %v", sent)
//		}
//	}
//
// The application gets a real *sender.Sender, which checks messages, groups, carries and fails as
// in production. Its ledger and its broker are in memory.
//
// # Which transaction
//
// New has a database in memory, Sender.DB, for code that only writes. It accepts every statement,
// changes one row with each, and answers every query with no rows. It supports transactions and
// savepoints (SAVEPOINT, ROLLBACK TO, and SQL Server's SAVE TRANSACTION and ROLLBACK TRANSACTION,
// each as a separate statement), and nothing else of SQL.
//
// On works on your own database with any library: on a SQLite file, or on the PostgreSQL that the
// tests start anyway. Pass the ledger that Open has returned. Committed then queries the database,
// so every rollback counts, even one to a savepoint.
//
// A transaction of another fake, such as go-sqlmock, works with New if the fake allows the
// statement that records: INSERT INTO bridge_ledger (id) VALUES …, with the IDs as arguments. Such
// a fake does not report whether it committed. Its messages are in Recorded, and Committed fails
// the test.
//
// # Delayed messages
//
// Committed has a delayed message at once, with its bridge.Message.NotBefore. Sender.Cancel cancels
// it in a transaction of Sender.DB or of On, whatever the time: no verifier runs that could have
// staged it. In a transaction of another fake, Cancel needs the statement DELETE FROM bridge_ledger
// WHERE id = ?, with the ID as its argument.
//
// # Failures
//
// Sender.FailPublish makes the broker fail: ErrOut, ErrRefused, or any error of package bridge.
// Sender.LoseCommit loses the answer of a COMMIT.
//
//	s.FailPublish(sendertest.ErrOut)
//
// Carried messages commit without the broker, as in production: to see a transaction fail, send a
// message that is not carried (sender.CarryNever, or an order key).
//
// If a transaction commits although SendTx or Wait has failed, its message would be lost in
// production. Then Committed fails the test.
//
// Package idempotencytest is for tests of the messages' handlers.
package sendertest
