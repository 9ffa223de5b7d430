package property_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestMain(m *testing.M) {
	// A check takes half a second or more. The command line, read later, overrules this.
	if err := flag.Set("rapid.checks", "40"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	servertest.Main(m)
}
