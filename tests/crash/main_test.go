package crash_test

import (
	"os"
	"testing"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestMain(m *testing.M) {
	if text, ok := os.LookupEnv(briefVariable); ok {
		playVictim(text)
	}
	servertest.Main(m)
}
