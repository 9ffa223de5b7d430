package main

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/twoqueue/twoqueue/bridge/migrate"
)

// mode is a database's locking mode.
type mode struct {
	snapshot  bool // READ_COMMITTED_SNAPSHOT
	optimized bool // OPTIMIZED_LOCKING
	switches  bool // optimized can be switched
	recovery  bool // ACCELERATED_DATABASE_RECOVERY, which optimized locking needs
}

func (m mode) String() string {
	name := "locking"
	if m.snapshot {
		name = "versioned"
	}
	if m.optimized {
		name += ", optimized"
	}
	return name
}

// modesOf returns the modes in which to ask, and a function that restores the present mode. The
// database must have none of the bridge's tables.
func modesOf(ctx context.Context, url string) (modes []mode, restore func(), err error) {
	db, err := sql.Open("sqlserver", url)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = db.Close() }()
	for _, part := range []migrate.Part{migrate.LedgerPart, migrate.InboxPart} {
		there, _, err := migrate.Version(ctx, db, migrate.SQLServer, part)
		if err != nil {
			return nil, nil, err
		}
		if there > 0 {
			return nil, nil, fmt.Errorf("the database has tables of the %s; give it one without", part)
		}
	}
	now, err := modeOf(ctx, db)
	if err != nil {
		return nil, nil, err
	}
	for _, snapshot := range []bool{false, true} {
		if now.switches {
			modes = append(modes, mode{snapshot, false, true, now.recovery}, mode{snapshot, true, true, true})
		} else {
			modes = append(modes, mode{snapshot, now.optimized, false, now.recovery})
		}
	}
	return modes, func() { now.set(context.WithoutCancel(ctx), url) }, nil
}

func modeOf(ctx context.Context, db *sql.DB) (now mode, err error) {
	var on int
	err = db.QueryRowContext(ctx, "SELECT count(*) FROM sys.databases WHERE name = DB_NAME() AND is_read_committed_snapshot_on = @p1", 1).Scan(&on)
	now.snapshot = on == 1
	var optimized sql.NullInt64 // null, or an error if the server does not have it
	if db.QueryRowContext(ctx, "SELECT CAST(DATABASEPROPERTYEX(DB_NAME(), 'IsOptimizedLockingOn') AS int)").Scan(&optimized) == nil {
		now.optimized, now.switches = optimized.Int64 == 1, optimized.Valid
	}
	_ = db.QueryRowContext(ctx, "SELECT is_accelerated_database_recovery_on FROM sys.databases WHERE name = DB_NAME()").Scan(&now.recovery)
	return now, err
}

// set switches the database, and reports whether it is in the mode afterwards: Azure SQL Database
// always has optimized locking, and the login may not be allowed to switch.
func (m mode) set(ctx context.Context, url string) bool {
	db, err := sql.Open("sqlserver", url)
	if err != nil {
		return false
	}
	defer func() { _ = db.Close() }()
	now, err := modeOf(ctx, db)
	if err != nil {
		return false
	}
	if now.snapshot != m.snapshot {
		_, _ = db.ExecContext(ctx, "ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT "+onOff(m.snapshot)+" WITH ROLLBACK IMMEDIATE")
	}
	if m.switches && now.optimized != m.optimized {
		recovery := "ALTER DATABASE CURRENT SET ACCELERATED_DATABASE_RECOVERY = " + onOff(m.recovery) + " WITH ROLLBACK IMMEDIATE"
		if m.optimized && !now.recovery {
			_, _ = db.ExecContext(ctx, recovery)
		}
		_, _ = db.ExecContext(ctx, "ALTER DATABASE CURRENT SET OPTIMIZED_LOCKING = "+onOff(m.optimized)+" WITH ROLLBACK IMMEDIATE")
		if !m.recovery {
			_, _ = db.ExecContext(ctx, recovery)
		}
	}
	now, err = modeOf(ctx, db)
	return err == nil && now.snapshot == m.snapshot && now.optimized == m.optimized
}

func onOff(on bool) string {
	if on {
		return "ON"
	}
	return "OFF"
}
