package ledger_test

import (
	"testing"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestMain(m *testing.M) {
	servertest.OwnMariaDB() // who waits for a lock is known of the whole server only
	servertest.Main(m)
}
