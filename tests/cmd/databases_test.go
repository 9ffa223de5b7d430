package cmd_test

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/tests/tds"
)

func hostOf(t *testing.T, address string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	must(t, err)
	return parsed.Host
}

// SQL Server is the stand-in, unless BRIDGE_TEST_SQLSERVER_URL names a real server.
func TestSQLServerByItsURL(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.SQLServer)
	for line := range strings.Lines(works(t, s, "BRIDGE_LOG_FORMAT=json")) {
		if !json.Valid([]byte(line)) {
			t.Errorf("the log is not JSON: %s", line)
		}
	}
	refused(t, 4, "BRIDGE_DATABASE_URL", "password", "BRIDGE_DATABASE_URL="+login(t, s.DatabaseURL), "BRIDGE_AMQP_URL="+s.AMQP)
	for _, options := range []*tds.Options{nil, {Babelfish: true}} { // without tables
		address := servertest.SQLServerDB(t, servertest.SQLServerStandIn(t, options).URL("master"), true)
		refused(t, 6, "BRIDGE_DATABASE_URL", "verifier -migrate", "BRIDGE_DATABASE_URL="+address, "BRIDGE_AMQP_URL="+s.AMQP)
	}
}
