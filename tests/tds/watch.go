package tds

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

const (
	sessionColumns = `COALESCE(s.login_name, '') AS login, COALESCE(s.program_name, '') AS program, COALESCE(s.host_name, '') AS host, COALESCE(s.status, '') AS status, CONVERT(nvarchar(23), DATEADD(minute, -DATEPART(TZOFFSET, SYSDATETIMEOFFSET()), a.transaction_begin_time), 126) AS since, COALESCE(r.blocking_session_id, 0) AS waits_for, LEFT(COALESCE(t.text, ''), 1000) AS statement`

	sessionViews = `LEFT JOIN sys.dm_exec_sessions s ON s.session_id = h.session LEFT JOIN sys.dm_tran_session_transactions st ON st.session_id = h.session LEFT JOIN sys.dm_tran_active_transactions a ON a.transaction_id = st.transaction_id LEFT JOIN sys.dm_exec_requests r ON r.session_id = h.session LEFT JOIN sys.dm_exec_connections c ON c.session_id = h.session AND c.parent_connection_id IS NULL OUTER APPLY sys.dm_exec_sql_text(c.most_recent_sql_handle) t`
)

// The library's queries of the views of sessions and locks.
var watchStatements = []statement{
	form(`SELECT h.session AS session, `+sessionColumns+` FROM (SELECT DISTINCT CAST(blocking_session_id AS int) AS session FROM sys.dm_exec_requests WHERE session_id = @p1 AND blocking_session_id «(<> 0|NOT IN \(0, -4, -5\))») h `+sessionViews+` ORDER BY since, session`,
		func(x *execution, words []string) {
			spid, _ := x.parameters["@p1"].(int64)
			var found []*session
			if x.server.happens(LatchWait) {
				if words[1] == "<> 0" {
					found = append(found, &session{spid: -5})
				}
			} else if waiter := x.server.sessions[int(spid)]; waiter != nil && waiter.waitsFor != nil {
				found = append(found, waiter.waitsFor.owner.session)
			}
			x.tell(found)
		}),
	form(`SELECT TOP (@p3) h.session AS session, `+sessionColumns+` FROM (SELECT DISTINCT request_session_id AS session FROM sys.dm_tran_locks WHERE resource_type = 'OBJECT' AND resource_database_id = DB_ID() AND resource_associated_entity_id = OBJECT_ID(@p1) AND request_status = 'GRANT' AND request_mode IN ('IX', 'SIX', 'UIX', 'X')) h `+sessionViews+` WHERE h.session <> @@SPID AND a.transaction_begin_time <= DATEADD(second, -@p2, SYSDATETIME()) ORDER BY since, session`,
		func(x *execution, _ []string) {
			name, _ := x.parameters["@p1"].(string)
			seconds, _ := x.parameters["@p2"].(int64)
			before := time.Now().Add(-time.Duration(seconds) * time.Second)
			var found []*session
			for _, s := range x.server.sessions {
				in := func(r resource) bool { return r.table == unquoted(name) }
				if s != x.session && s.tx != nil && s.db == x.db && slices.ContainsFunc(s.tx.locks, in) && !s.tx.began.After(before) {
					found = append(found, s)
				}
			}
			slices.SortFunc(found, func(a, b *session) int {
				return cmp.Or(a.tx.began.Compare(b.tx.began), cmp.Compare(a.spid, b.spid))
			})
			x.tell(found[:min(len(found), x.top("@p3"))])
		}),
	form(`SELECT count(*) FROM sys.dm_exec_sessions WHERE session_id = @p1`, func(x *execution, _ []string) {
		spid, _ := x.parameters["@p1"].(int64)
		x.number(count(int(spid) == x.spid || x.server.sessions[int(spid)] != nil && x.seesOthers()))
	}),
	form(`SELECT DATEDIFF_BIG(millisecond, '19700101', SYSUTCDATETIME())`, func(x *execution, _ []string) {
		x.number(int(time.Now().UnixMilli()))
	}),
}

// viewServerState is the right that SQL Server 2022 requires for the views of sessions and locks.
// VIEW SERVER STATE implies it.
const viewServerState = "VIEW SERVER PERFORMANCE STATE"

// locksView is a view that a Babelfish may not have. Which views of SQL Server's there are differs
// between its versions.
const locksView = "sys.dm_tran_locks"

func (x *execution) seesOthers() bool { return !slices.Contains(x.server.denied, viewServerState) }

// tell answers with the views' columns for sessions.
func (x *execution) tell(found []*session) {
	if slices.Contains(x.server.denied, "SELECT ON "+locksView) && x.server.options.Babelfish {
		panic(noObject(locksView))
	}
	if !x.seesOthers() {
		if version, _, _ := x.product(); strings.HasPrefix(version, "16.") {
			panic(errNotAllowed)
		}
		panic(errNoPermission)
	}
	x.out.describe(column{"session", kindInt}, column{"login", kindText}, column{"program", kindText}, column{"host", kindText},
		column{"status", kindText}, column{"since", kindText}, column{"waits_for", kindInt}, column{"statement", kindText})
	for _, s := range found {
		var since any
		if s.tx != nil {
			since = x.style126(s.tx.began.UTC())
		}
		status, waitsFor := "sleeping", 0
		if s.waitsFor != nil {
			status, waitsFor = "suspended", s.waitsFor.owner.session.spid
		}
		text := []rune(s.last)
		x.out.row(s.spid, user, s.program, s.host, status, since, waitsFor, string(text[:min(len(text), 1000)]))
	}
}
