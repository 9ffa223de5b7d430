// Package mssql reads the numbers of SQL Server's errors. It is apart from package sqlserver because
// package migrate reads them too, and links no ledger.
package mssql

import (
	"errors"
	"strings"
)

// The numbers of SQL Server's errors that packages of the bridge handle ('Database engine events
// and errors').
const (
	NoObject        = 208  // there is no such table or view
	NoIndex         = 308  // a hint names an index that does not exist
	IndexDisabled   = 315  // a hint names a disabled index
	NoPlan          = 8622 // no plan follows the hints: there is no index to seek
	Denied          = 229  // no right on the object
	ColumnDenied    = 230  // no right on the column
	NoDatabaseRight = 262  // no right in the database, such as CREATE TABLE or VIEW DATABASE STATE
	NoPermission    = 297  // no right to a view of the server, after NoServerState
	NoServerState   = 300  // no VIEW SERVER STATE
	NotAllowed      = 371  // in place of NoPermission and NoServerState, from SQL Server 2022 on
	DeadlockVictim  = 1205 // the server has rolled the transaction back
	LockTimeout     = 1222 // LOCK_TIMEOUT has ended a wait
	UniqueIndex     = 2601 // duplicate key in a unique index
	PrimaryKey      = 2627 // duplicate primary key
	NoSchemaRight   = 2760 // the schema does not exist, or the login may not change it
	ReadOnlyReplica = 3906 // a secondary, or a read-only database
	DataMoved       = 601  // under a READUNCOMMITTED read
	NoPage          = 1101 // no space in a filegroup, as DiskFull
	DiskFull        = 1105
	ServerStops     = 6005 // SHUTDOWN is in progress
	LogFull         = 9002
	TooManySessions = 17809 // the limit 'user connections'

	// The server lacks memory or time.
	NoMemory      = 701
	NoBuffer      = 802
	NoLock        = 1204 // no memory for a lock
	CompileWait   = 8628
	MemoryWait    = 8645
	NoMemoryGrant = 8651

	// Row versions of a snapshot transaction.
	VersionMissing  = 3958 // tempdb is full
	UpdateConflict  = 3960
	VersionsShrunk  = 3966 // tempdb is full
	NoVersionsSpace = 3967 // tempdb is full

	// Transactions on memory-optimized tables ('Transactions with Memory-Optimized Tables').
	DependencyFailed     = 41301
	WriteConflict        = 41302
	RepeatableReadFailed = 41305
	SerializableFailed   = 41325
	TooManyDependencies  = 41839

	// Azure SQL Database moves, is busy, or is at a limit of its resources ('Troubleshoot transient
	// connection errors', 'Troubleshoot connectivity issues and other errors'). 40549 to 40553 are
	// not here: they end a session because of its own transaction.
	AzureMoved        = 40197
	AzureBusy         = 40501
	AzureUnavailable  = 40613
	AzureWorkers      = 10928
	AzureFewWorkers   = 10929
	AzurePoolWorkers  = 10936 // of the elastic pool
	AzurePoolFull     = 1132  // storage of the elastic pool
	AzureDiskFull     = 40544
	AzureNoResources  = 49918
	AzureManyChanges  = 49919
	AzureManyRequests = 49920
)

// babelfishError is the number of Babelfish 4.3 for PostgreSQL's errors that have no number of SQL
// Server's; the text distinguishes them (measured on 4.3).
const babelfishError = 33557097

func babelfishNumber(text string) int32 {
	switch {
	case strings.Contains(text, "due to lock timeout"):
		return LockTimeout
	case strings.Contains(text, "relation ") && strings.Contains(text, "does not exist"):
		return NoObject
	}
	return babelfishError
}

// Number returns the number of the server's error, or 0 if err is none. The driver's error has the
// method. Babelfish's own number is translated if its meaning is known.
func Number(err error) int32 {
	var e interface{ SQLErrorNumber() int32 }
	if !errors.As(err, &e) {
		return 0
	}
	if e.SQLErrorNumber() == babelfishError {
		return babelfishNumber(err.Error())
	}
	return e.SQLErrorNumber()
}
