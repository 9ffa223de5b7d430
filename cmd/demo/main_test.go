package main

import (
	"os"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/cmd/internal/commandtest"
)

func TestARunThatCannotStartIsOneLineAndLeavesNothing(t *testing.T) {
	for _, c := range []struct {
		arg, name, value string
		code             int
		want             string
	}{
		{"-orders=0", "", "", 2, "-orders must be"},
		{"-order=1", "", "", 2, "see demo -help"},
		{"-orders=1", "BRIDGE_DATABASE_URL", "sqlite:/x.db", 1, "BRIDGE_DATABASE_URL: must start with postgres://"},
		{"-orders=1", "BRIDGE_DATABASE_URL", "postgres://u:s3cret@127.0.0.1:1/x", 1, "BRIDGE_DATABASE_URL: "},
		{"-orders=1", "BRIDGE_AMQP_URL", "amqp://u:s3cret@127.0.0.1:1/", 1, "BRIDGE_AMQP_URL: "},
	} {
		t.Run(c.arg+c.value, func(t *testing.T) {
			temporary := t.TempDir()
			t.Setenv("TMPDIR", temporary)
			if c.name != "" {
				t.Setenv(c.name, c.value)
			}
			code, out, line := commandtest.Run(t, run, c.arg)
			if code != c.code || strings.Count(line, "\n") != 1 || !strings.Contains(line, c.want) || strings.Contains(line+out, "s3cret") {
				t.Errorf("exit code %d, %q", code, line)
			}
			if files, err := os.ReadDir(temporary); err != nil || len(files) > 0 {
				t.Errorf("left behind: %v, %v", files, err)
			}
		})
	}
}
