package receiver_test

import (
	"testing"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestMain(m *testing.M) { servertest.Main(m) }
