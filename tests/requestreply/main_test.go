package requestreply_test

import (
	"os"
	"testing"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(briefVariable); text != "" {
		serve(text)
		return
	}
	servertest.Main(m)
}
