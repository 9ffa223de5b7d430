package property_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestMain(m *testing.M) {
	// A check takes half a second or more. The command line is parsed later and overrides this.
	set("rapid.checks", "15")
	if os.Getenv("CI") == "true" { // CI keeps no fail file
		set("rapid.nofailfile", "true")
	}
	servertest.Main(m)
}

func set(name, value string) {
	if err := flag.Set(name, value); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
