package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// readIdentity returns the ledger's identity after a check of the tables.
func (l *Ledger) readIdentity(ctx context.Context) (uuid.UUID, error) {
	identity, err := portable.ReadIdentity(ctx, l.db, schema.Name{})
	if err != nil {
		return uuid.Nil, err
	}
	var engine string
	err = l.db.GetContext(ctx, &engine, ledgerEngine)
	if errors.Is(err, sql.ErrNoRows) {
		return uuid.Nil, errors.New("the login has no right on bridge_ledger: GRANT INSERT, or the rights of its role")
	}
	if err != nil {
		return uuid.Nil, fmt.Errorf("read the engine of bridge_ledger: %w", err)
	}
	if engine != "InnoDB" {
		return uuid.Nil, fmt.Errorf("%w: the engine of bridge_ledger is %s, must be InnoDB", bridge.ErrNoSchema, engine)
	}
	return identity, nil
}

// checkVariables refuses a server whose locks do not show a transaction's state. Releases without
// one of the variables do not list it.
func (l *Ledger) checkVariables(ctx context.Context) error {
	var settings []struct {
		Name  string `db:"Variable_name"`
		Value string `db:"Value"`
	}
	err := l.db.SelectContext(ctx, &settings, clusterSettings)
	if err != nil {
		return err
	}
	for _, s := range settings {
		switch {
		case s.Name == "wsrep_on" && !isOff(s.Value):
			return fmt.Errorf("%w: in a Galera cluster no node waits for another's locks (wsrep_on = %s)", bridge.ErrNotPrimary, s.Value)
		case s.Name == "group_replication_single_primary_mode" && isOff(s.Value):
			return fmt.Errorf("%w: with several primaries no node waits for another's locks (%s = %s)", bridge.ErrNotPrimary, s.Name, s.Value)
		}
	}
	if err := l.checkConsistency(ctx); err != nil {
		return err
	}
	var set string
	if err := l.db.GetContext(ctx, &set, readOnlySettings); err != nil {
		return err
	}
	return takesWrites(set)
}

// checkConsistency refuses a member of a replication group that may show old state: after its
// election its sessions read before it has applied the transactions of the old primary. Committed
// rows are then absent, and not locked. At all levels except EVENTUAL the sessions wait (MySQL 9.5
// Reference Manual, 'Configuring Transaction Consistency Guarantees'). A server without the plugin
// has neither variable, and a server in no group has an empty name.
func (l *Ledger) checkConsistency(ctx context.Context) error {
	var settings []struct {
		Name  string `db:"Variable_name"`
		Value string `db:"Value"`
	}
	err := l.db.SelectContext(ctx, &settings, groupSettings)
	if err != nil {
		return err
	}
	for _, s := range settings {
		if len(settings) == 2 && s.Name == "group_replication_consistency" && strings.EqualFold(s.Value, "EVENTUAL") {
			return fmt.Errorf("%w: with group_replication_consistency = EVENTUAL a newly elected primary shows its state before it has applied the old primary's transactions: "+
				"SET PERSIST group_replication_consistency = 'BEFORE_ON_PRIMARY_FAILOVER' on every member, and reconnect", bridge.ErrNotPrimary)
		}
	}
	return nil
}

// takesWrites returns an error unless all variables in readOnly are off. super_read_only is left
// out: MariaDB lacks it, and it turns read_only on (MySQL 8.4 Reference Manual, 'Server System
// Variables').
func takesWrites(readOnly string) error {
	for _, value := range strings.Fields(readOnly) {
		if !isOff(value) {
			return fmt.Errorf("%w: the server is read-only (read_only and innodb_read_only are %s)", bridge.ErrNotPrimary, readOnly)
		}
	}
	return nil
}

// checkReplica refuses a server that applies the transactions of another. Only logins with REPLICA
// MONITOR or REPLICATION CLIENT may read the status; for others it does nothing.
func (l *Ledger) checkReplica(ctx context.Context) error {
	rows, err := l.db.QueryxContext(ctx, replicaStatus)
	if n := errorNumber(err); n == missingRight || n == syntaxError { // before MySQL 8.0.22
		return nil
	}
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		status := map[string]any{}
		if err := rows.MapScan(status); err != nil {
			return err
		}
		if applies(status) {
			return fmt.Errorf("%w: the server is a replica", bridge.ErrNotPrimary)
		}
	}
	return rows.Err()
}

// applies reports whether a replica's applying thread runs, under either release's name.
func applies(status map[string]any) bool {
	return slices.ContainsFunc([]string{"Slave_SQL_Running", "Replica_SQL_Running"}, func(name string) bool {
		value, _ := status[name].([]byte)
		return string(value) == "Yes"
	})
}

// isOff reports whether value means that a variable is off.
func isOff(value string) bool { return value == "0" || strings.EqualFold(value, "OFF") }
