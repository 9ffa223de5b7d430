package program

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestMain(m *testing.M) { Main(m) }

func TestAProcessIsHeardAsItSpeaks(t *testing.T) {
	t.Parallel()
	p := StartCmd(t, exec.Command("bash", "-c", `trap 'echo bye; exit 7' TERM; echo one; echo two >&2; while :; do sleep 0.1; done`))
	p.Hear("two")
	p.Read(&p.Stdout, "one", func(said string) bool { return said == "one\n" })
	if p.HasEnded() {
		t.Error("it has ended")
	}
	if code := p.Stop(); code != 7 || p.Stdout.String() != "one\nbye\n" {
		t.Errorf("exit code %d, %q", code, p.Stdout.String())
	}
	p.Hear("two") // also when it has ended
	if p.Kill() {
		t.Error("it was killed, but had ended before")
	}
}

func TestAKilledProcessSaysSo(t *testing.T) {
	t.Parallel()
	p := StartCmd(t, exec.Command("sleep", "1000"))
	if !p.Kill() || p.Await() != -1 {
		t.Error("it was not killed")
	}
	if other := StartCmd(t, exec.Command("bash", "-c", "kill -TERM $$")); other.Await() != -1 || other.Kill() {
		t.Error("another signal counts as a kill")
	}
	if p.String() != "sleep 1000" {
		t.Errorf("it is called %s", p)
	}
}

// A variable set for the project's commands would change what a test sees.
func TestVariablesOfTheCommandsDoNotReachThem(t *testing.T) {
	for _, name := range []string{"BRIDGE_AMQP_URL", "EMAIL_QUEUE", "OTEL_SERVICE_NAME", "NO_COLOR"} {
		t.Setenv(name, "x")
		if slices.Contains(Environment(), name+"=x") {
			t.Errorf("%s is passed on", name)
		}
	}
	cmd := Command(t, "verifier", "BRIDGE_QUEUE=y", "--to=:z")
	if last := cmd.Env[len(cmd.Env)-1]; last != "BRIDGE_QUEUE=y" || !slices.Equal(cmd.Args[1:], []string{"--to=:z"}) {
		t.Errorf("variables %s, arguments %v", last, cmd.Args)
	}
	r := RunCmd(t, cmd)
	if r.Code != 2 || !strings.HasPrefix(r.Stderr, "verifier: ") {
		t.Errorf("%+v", r)
	}
}

func TestOnlyTheEndOfALongOutputIsTold(t *testing.T) {
	t.Parallel()
	var o Output
	for range 3 * told {
		_, _ = o.Write([]byte("x"))
	}
	_, _ = o.Write([]byte("the end"))
	if text := o.end(); len(text) > told+100 || !strings.HasSuffix(text, "the end") || !strings.HasPrefix(text, "(") {
		t.Errorf("%d bytes: %.50s", len(text), text)
	}
}
