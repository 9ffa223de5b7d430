package servertest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// Again returns a command that runs this test binary again, as a process to be killed. The brief,
// JSON in an environment variable, determines its part; see Play.
func Again(t testing.TB, variable string, brief any) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(brief)
	if err != nil {
		t.Fatalf("write brief: %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatalf("find this binary: %v", err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), variable+"="+string(text))
	return cmd
}

// Play plays the brief of a process from Again, and exits. In the tests' own process it does
// nothing. TestMain calls it first.
func Play[B any](variable string, play func(brief B) error) {
	text, ok := os.LookupEnv(variable)
	if !ok {
		return
	}
	var brief B
	err := json.Unmarshal([]byte(text), &brief)
	if err == nil {
		err = play(brief)
	}
	fmt.Fprintln(os.Stderr, "the process ends:", err)
	os.Exit(1)
}
