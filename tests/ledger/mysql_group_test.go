package ledger_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// With EVENTUAL a newly elected primary accepts reads before it has applied the old primary's
// transactions, which would look rolled back. Only MySQL has group replication.
func TestMySQLGroupThatShowsAnOldStateIsRefused(t *testing.T) {
	t.Parallel()
	if _, db := mariaDB(t); !isMySQL(t, db) {
		t.Log("MariaDB has no group replication")
		return
	}
	server := servertest.StartMariaDB(t, &servers.MariaDBOptions{Fast: true, Config: []string{"gtid-mode=ON", "enforce-gtid-consistency=ON"}})
	db := onServer(t, server)
	db.SetMaxIdleConns(0) // each session has the current settings
	ledger := openMySQL(t, db)
	execute(t, db, "INSTALL PLUGIN group_replication SONAME 'group_replication.so'")
	execute(t, db, "SET GLOBAL group_replication_consistency = 'EVENTUAL'")
	must(t, ledger.Check(t.Context())) // a server in no group

	for _, statement := range []string{
		"SET GLOBAL group_replication_group_name = '0192a0c0-0000-4000-8000-000000000001'",
		fmt.Sprintf("SET GLOBAL group_replication_local_address = '127.0.0.1:%d'", freePortAfter(t, server.Port)),
		"SET GLOBAL group_replication_bootstrap_group = ON",
		"START GROUP_REPLICATION",
		"SET GLOBAL group_replication_bootstrap_group = OFF",
	} {
		execute(t, db, statement)
	}
	servertest.Eventually(t, "the member takes writes", func() bool {
		var readOnly bool
		must(t, db.QueryRowContext(t.Context(), "SELECT @@GLOBAL.read_only").Scan(&readOnly))
		return !readOnly
	})
	for level, want := range map[string]error{
		"EVENTUAL": bridge.ErrNotPrimary, "BEFORE_ON_PRIMARY_FAILOVER": nil, "BEFORE": nil, "AFTER": nil, "BEFORE_AND_AFTER": nil,
	} {
		execute(t, db, "SET GLOBAL group_replication_consistency = '"+level+"'")
		finding := inspect.OK
		if want == nil {
			must(t, prove(t, ledger))
		} else {
			expectNotPrimary(t, level+": prove", prove(t, ledger))
			finding = inspect.Error
		}
		ledgertest.Finds(t, inspectorOf(t, ledger), "group replication", finding, level)
	}
	execute(t, db, "STOP GROUP_REPLICATION")
}

// freePortAfter returns a free port beside a server's. An outgoing connection has none of these ports
// (see compose/servers), and may have any higher one.
func freePortAfter(t *testing.T, port int) int {
	t.Helper()
	for next := port + 1; next < port+100; next++ {
		if listener, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", next)); err == nil {
			must(t, listener.Close())
			return next
		}
	}
	t.Fatalf("no port from %d on is free", port+1)
	return 0
}
