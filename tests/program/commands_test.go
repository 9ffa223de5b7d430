package program

import (
	"strings"
	"testing"
)

func TestMain(m *testing.M) { Main(m) }

// All commands have -help and -version, and report misuse in one line.
func TestEveryCommandKnowsHelpVersionAndMisuse(t *testing.T) {
	for _, command := range []string{"bridgectl", "demo", "email-gateway", "shop", "verifier"} {
		t.Run(command, func(t *testing.T) {
			for _, help := range []string{"-help", "--help"} {
				if r := RunCmd(t, Command(t, command, help)); r.Code != 0 || r.Stderr != "" || !strings.Contains(r.Stdout, "-version") || !strings.Contains(r.Stdout, "Exit codes") {
					t.Errorf("%s: %+v", help, r)
				}
			}
			for _, version := range []string{"-version", "--version"} {
				if r := RunCmd(t, Command(t, command, version)); r.Code != 0 || r.Stderr != "" ||
					!strings.HasPrefix(r.Stdout, command+" ") || !strings.Contains(r.Stdout, ", revision ") || strings.Count(r.Stdout, "\n") != 1 {
					t.Errorf("%s: %+v", version, r)
				}
			}
			for _, wrong := range []string{"--no-such-flag", "no-such-argument"} {
				if r := RunCmd(t, Command(t, command, wrong)); r.Code != 2 || r.Stdout != "" || !strings.HasPrefix(r.Stderr, command+": ") || strings.Count(r.Stderr, "\n") != 1 {
					t.Errorf("%s: %+v", wrong, r)
				}
			}
		})
	}
}
