package ledger_test

import (
	"testing"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestMain(m *testing.M) {
	servertest.OwnMariaDB() // MariaDB reports waits for locks only for the whole server
	servertest.Main(m)
}
