package sqlserver

import (
	"errors"
	"fmt"
	"strings"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/mssql"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

func isDuplicate(err error) bool {
	return mssql.Number(err) == mssql.PrimaryKey || mssql.Number(err) == mssql.UniqueIndex
}

// Transient implements driver.Transactions.
func (*Inbox) Transient(err error) bool {
	switch mssql.Number(err) {
	case mssql.DeadlockVictim, mssql.LockTimeout, mssql.DataMoved, mssql.ReadOnlyReplica,
		mssql.LogFull, mssql.NoPage, mssql.DiskFull, mssql.ServerStops, mssql.TooManySessions,
		mssql.NoMemory, mssql.NoBuffer, mssql.NoLock, mssql.CompileWait, mssql.MemoryWait, mssql.NoMemoryGrant,
		mssql.VersionMissing, mssql.UpdateConflict, mssql.VersionsShrunk, mssql.NoVersionsSpace,
		mssql.DependencyFailed, mssql.WriteConflict, mssql.RepeatableReadFailed, mssql.SerializableFailed, mssql.TooManyDependencies,
		mssql.AzureMoved, mssql.AzureBusy, mssql.AzureUnavailable, mssql.AzureWorkers, mssql.AzureFewWorkers, mssql.AzurePoolWorkers,
		mssql.AzurePoolFull, mssql.AzureDiskFull, mssql.AzureNoResources, mssql.AzureManyChanges, mssql.AzureManyRequests:
		return true
	}
	return false
}

// inFull adds the server's error to an error whose text leaves it out: the driver's text for an
// error that ends the connection says only that there was one.
func inFull(err error) error {
	var e interface{ SQLErrorMessage() string }
	if errors.As(err, &e) && !strings.Contains(err.Error(), e.SQLErrorMessage()) {
		return fmt.Errorf("%w: %s (%d)", err, e.SQLErrorMessage(), mssql.Number(err))
	}
	return err
}

// classify adds the bridge's error, with the fix, to the driver's error. needed are the rights
// without which the statement is denied.
func classify(in schema.Name, err error, needed string) error {
	err = inFull(err)
	switch mssql.Number(err) {
	case mssql.PrimaryKey, mssql.UniqueIndex:
		return fmt.Errorf("%w: %w", bridge.ErrDuplicateID, err)
	case mssql.NoObject:
		return fmt.Errorf("%w: %s: %w", bridge.ErrNoSchema, in.Fix("the login's default schema"), err)
	case mssql.NoIndex, mssql.IndexDisabled, mssql.NoPlan:
		return fmt.Errorf("an index that the statements need is missing or disabled: enable it by ALTER INDEX ALL ON the table REBUILD, or create it again, the bridge's own as bridgectl migrate print shows: %w", err)
	case mssql.ReadOnlyReplica:
		return fmt.Errorf("%w: %w", bridge.ErrNotPrimary, err)
	case mssql.TooManySessions, mssql.AzureWorkers, mssql.AzureFewWorkers, mssql.AzurePoolWorkers: // no further connection
		return fmt.Errorf("%w: %w", driver.ErrNoConnection, err)
	case mssql.Denied, mssql.ColumnDenied:
		return fmt.Errorf("the login lacks a right, needed here: GRANT %s: %w", in.In(needed), err)
	}
	return err
}
