package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/cmd/internal/database"
)

// consumersMost bounds the number of consumers that listConsumers returns.
const consumersMost = 100

// An inboxClaim is the state of a message for one consumer of the inbox.
type inboxClaim struct {
	Consumer string     `json:"consumer"`
	Claimed  bool       `json:"claimed"`
	State    string     `json:"state"` // done, or driver.State while it is pending; "" if not claimed
	Attempts int        `json:"attempts,omitempty"`
	Since    *time.Time `json:"since,omitempty"` // when a pending message was claimed
	Error    string     `json:"error,omitempty"`
}

const stateDone = "done"

// claims looks a key up in the inbox for the given consumers, or without any for all consumers in
// the inbox. It returns nil if no inbox is named.
func (a *app) claims(ctx context.Context, key string, consumers []string) ([]inboxClaim, error) {
	if a.config.Inbox.URL == "" {
		return nil, nil
	}
	db, err := a.inbox(ctx)
	if err != nil {
		return nil, err
	}
	if consumers, err = db.consumers(ctx, consumers, claimTable); err != nil {
		return nil, err
	}
	all := []inboxClaim{}
	for _, consumer := range consumers {
		claimed, pending, err := db.lookUp(ctx, consumer, key)
		if err != nil {
			return nil, fmt.Errorf("ask the inbox: %w", err)
		}
		claim := inboxClaim{Consumer: consumer, Claimed: claimed}
		switch {
		case pending != nil:
			claim.State, claim.Attempts, claim.Since, claim.Error = string(pending.State), pending.Attempts, &pending.Since, pending.Error
		case claimed:
			claim.State = stateDone
		}
		all = append(all, claim)
	}
	return all, nil
}

// The inbox's tables.
const (
	claimTable   = "bridge_inbox"
	pendingTable = "bridge_inbox_pending"
	keptTable    = "bridge_kept"
	markTable    = "bridge_mark"
)

// listConsumers returns the consumers of a table. It steps from one to the next by the index, since
// an inbox may have millions of rows but has few consumers.
func listConsumers(ctx context.Context, db *database.Database, table string) ([]string, error) {
	var all []string
	last := ""
	for len(all) < consumersMost {
		var next []byte
		query := db.In(db.Rebind(`SELECT MIN(consumer) FROM ` + table + ` WHERE consumer > ?`))
		if err := db.QueryRowContext(ctx, query, nameArgument(db.DB, last)).Scan(&next); err != nil {
			return nil, err
		}
		if next == nil {
			break
		}
		last = string(next)
		all = append(all, last)
	}
	return all, nil
}

// nameArgument returns a name as an argument of a statement. The columns of some databases have
// bytes.
func nameArgument(db *sqlx.DB, name string) any {
	if driver := db.DriverName(); driver == "mysql" || driver == "sqlserver" {
		return []byte(name)
	}
	return name
}
