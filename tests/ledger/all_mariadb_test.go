package ledger_test

import "testing"

// Tests that look at waiting sessions run alone on the package's MariaDB: the server reports the
// sessions of all its databases together. The other tests start after these and run beside each
// other. PostgreSQL reports the sessions of each database, so its tests run beside all of them.
//
// TestMariaDB takes the longest of all tests. Go usually starts the first test of a package
// first: the file's name makes it this one.
func TestMariaDB(t *testing.T) {
	t.Parallel()
	t.Run("suite", testMariaDBSuite)
	t.Run("suite of an own table", testMariaDBOwnTableSuite)
	t.Run("suite of an own table with a UUID column", testMariaDBUUIDColumnSuite)
	t.Run("the session is left as it was", testMariaDBLeavesTheSessionAsItWas)

	beside := func(name string, test func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
	beside("any connection", testMariaDBAnyConnection)
	beside("the inbox keeps bytes as they are on any connection", testMariaDBInboxKeepsBytesAsTheyAre)
	beside("end to end, own table", func(t *testing.T) { testEndToEnd(t, mariaDBOwnTable("BINARY(16)")) })
	beside("each role works with its rights and no more", func(t *testing.T) { testEachRole(t, mariaDBGuarded) })
	beside("a canceller cancels with its rights", func(t *testing.T) { testRightsToCancel(t, mariaDBGuarded(t)) })
	beside("a migration needs the documented rights", testMariaDBRightsToMigrate)
	beside("own table, least rights", testMariaDBOwnTableLeastRights)
	beside("an unusable own table is refused", testMariaDBUnusableOwnTableIsRefused)
	beside("an own table is read by an index in use", testMariaDBOwnTableIsReadByAnIndexInUse)
	beside("an own table's identity is the table's", testMariaDBOwnTablesIdentity)
	beside("a ledger of another engine is refused", testMariaDBLedgerOfAnotherEngineIsRefused)
	beside("a claim of another since the first read is not given", testMariaDBAClaimOfAnotherSinceTheFirstReadIsNotGiven)
	beside("a migration is completed after a crash anywhere", testMariaDBMigrationIsCompletedAfterACrashAnywhere)
	beside("parked messages are carried", testMariaDBParkedMessagesAreCarried)
	beside("a migration gives up behind an open transaction", testMariaDBMigrationGivesUpBehindAnOpenTransaction)
	beside("a row has the time of its insert", testMariaDBTimeOfInsert)
	beside("times do not depend on the connection", testMariaDBTimesDoNotDependOnTheConnection)
}
