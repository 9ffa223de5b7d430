// Package sqlserver runs the suites of bridge/ledgertest and tests of its own on
// bridge/sqlserver, through the real driver: on the stand-in of tests/tds with all its switches,
// and on a real SQL Server if one is configured.
//
//	BRIDGE_TEST_SQLSERVER_URL='sqlserver://sa:password@host:1433?encrypt=disable' go test ./tests/sqlserver
//
// The login must be allowed to create databases and to end connections. Every test creates its
// own databases and drops them.
//
// tests/sqlserver/ask asks a real server the questions that are in no documentation.
package sqlserver
