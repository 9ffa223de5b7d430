// Package sqlserver holds bridge/sqlserver against the suites of bridge/ledgertest,
// through the real driver: against the stand-in of tests/tds in all its switches,
// and against a real SQL Server where one is given.
//
//	BRIDGE_TEST_SQLSERVER_URL='sqlserver://sa:password@host:1433?encrypt=disable' go test ./tests/sqlserver
//
// The login must be allowed to create databases and to end connections. Every test
// makes databases of its own and drops them.
//
// What no document says, tests/sqlserver/ask asks a real server.
package sqlserver
