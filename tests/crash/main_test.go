package crash_test

import (
	"flag"
	"testing"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

var longFlag = flag.Bool("crash.long", false, "kill servers ten times as often")

func TestMain(m *testing.M) {
	servertest.Play(briefVariable, func(b brief) error { return (&victim{brief: b}).play() })
	servertest.Main(m)
}
