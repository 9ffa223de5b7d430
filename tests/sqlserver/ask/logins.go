package main

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strings"
)

// missingDatabase logs in to a database that does not exist.
func missingDatabase(ctx context.Context, w *world) (string, error) {
	return w.login(ctx, "twoqueue_ask_missing")
}

// offlineDatabase logs in to an offline database, which answers as a recovering one does.
func offlineDatabase(ctx context.Context, w *world) (_ string, err error) {
	const name = "twoqueue_ask_offline"
	if _, err := w.db.ExecContext(ctx, "CREATE DATABASE "+name); err != nil {
		return "", err
	}
	defer func() {
		// If a database is dropped while it is offline, its files stay.
		_, online := w.db.ExecContext(context.WithoutCancel(ctx), "ALTER DATABASE "+name+" SET ONLINE")
		_, drop := w.db.ExecContext(context.WithoutCancel(ctx), "DROP DATABASE "+name)
		if err == nil {
			err = errors.Join(online, drop)
		}
	}()
	if _, err := w.db.ExecContext(ctx, "ALTER DATABASE "+name+" SET OFFLINE WITH ROLLBACK IMMEDIATE"); err != nil {
		return "", err
	}
	return w.login(ctx, name)
}

// login returns the error numbers of a failed login to a database.
func (w *world) login(ctx context.Context, database string) (string, error) {
	address, err := url.Parse(w.url)
	if err != nil {
		return "", errors.New("the address is no URL")
	}
	query := address.Query()
	query.Set("database", database)
	address.RawQuery = query.Encode()
	db, err := sql.Open("sqlserver", address.String())
	if err != nil {
		return "", err
	}
	defer func() { _ = db.Close() }()
	if err := db.PingContext(ctx); err != nil {
		return number(err), nil
	}
	return "no error", nil
}

// seen are the views of sessions and locks that the library reads.
var seen = []struct{ view, query string }{
	{"dm_tran_locks", "SELECT count(*) FROM sys.dm_tran_locks"},
	{"dm_exec_requests", "SELECT count(*) FROM sys.dm_exec_requests"},
	{"dm_exec_sessions", "SELECT count(*) FROM sys.dm_exec_sessions"},
	{"dm_exec_connections", "SELECT count(*) FROM sys.dm_exec_connections"},
	{"dm_tran_session_transactions", "SELECT count(*) FROM sys.dm_tran_session_transactions"},
	{"dm_tran_active_transactions", "SELECT count(*) FROM sys.dm_tran_active_transactions"},
	{"dm_exec_sql_text", "SELECT count(*) FROM sys.dm_exec_sql_text(NULL)"},
}

// noServerState reads the views as a user without VIEW SERVER STATE.
func noServerState(ctx context.Context, w *world) (_ string, err error) {
	const user = "twoqueue_ask"
	if _, err := w.db.ExecContext(ctx, "CREATE USER "+user+" WITHOUT LOGIN"); err != nil {
		return "", err
	}
	defer func() {
		_, failed := w.db.ExecContext(context.WithoutCancel(ctx), "DROP USER "+user)
		err = errors.Join(err, failed)
	}()
	conn, err := w.db.Conn(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if _, err := conn.ExecContext(ctx, "EXECUTE AS USER = '"+user+"'"); err != nil {
		return "", err
	}
	var answers []string
	for _, s := range seen {
		answer, n := "no error", 0
		if err := conn.QueryRowContext(ctx, s.query).Scan(&n); err != nil {
			answer = number(err)
		}
		answers = append(answers, s.view+": "+answer)
	}
	_, err = conn.ExecContext(ctx, "REVERT")
	return strings.Join(answers, "; "), err
}
