package crash_test

import (
	"flag"
	"testing"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

var longFlag = flag.Bool("crash.long", false, "kill servers, and processes at random moments, ten times as often")

// scaled returns n, or ten times n with -crash.long.
func scaled(n int) int {
	if *longFlag {
		return 10 * n
	}
	return n
}

func TestMain(m *testing.M) {
	servertest.Play(briefVariable, func(b brief) error { return (&victim{brief: b}).play() })
	servertest.Main(m)
}
