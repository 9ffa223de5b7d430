package sqlserver_test

import (
	"fmt"
	"testing"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/twoqueue/twoqueue/bridge/sqlserver"
)

// An attempt that failed because of the server must not count against the message.
func TestErrorsOfTheServerAreTransient(t *testing.T) {
	inbox := new(sqlserver.Inbox)
	for number, want := range map[int32]bool{
		1205: true, 1222: true, // a deadlock, a time-out
		601: true,                                                            // data moved under a dirty read: 'Table hints'
		701: true, 802: true, 1204: true, 8628: true, 8645: true, 8651: true, // no memory, no time to compile
		1101: true, 1105: true, 9002: true, 17809: true, 6005: true, 3906: true, // no space, no session, a server that stops or is a secondary
		3958: true, 3960: true, 3966: true, 3967: true, // row versions
		41301: true, 41302: true, 41305: true, 41325: true, 41839: true, // memory-optimized tables
		1132: true, 10928: true, 10929: true, 10936: true, 40197: true, 40501: true, 40544: true, 40613: true, 49918: true, 49919: true, 49920: true, // Azure
		208: false, 229: false, 334: false, 515: false, 547: false, 2627: false, 8152: false, // the statement's or the deployment's
		40549: false, 40552: false, // Azure ends the session because of its own transaction
	} {
		if got := inbox.Transient(fmt.Errorf("handle: %w", mssql.Error{Number: number})); got != want {
			t.Errorf("%d is transient: %t, must be %t", number, got, want)
		}
	}
}
