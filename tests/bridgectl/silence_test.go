package bridgectl_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// A broker may answer heartbeats, and a request never: a queue without a majority, a frozen node
// behind a proxy. Each command must end all the same, and its error must name the request.
func TestACommandEndsIfTheBrokerAnswersHeartbeatsOnly(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	id := s.deadLetter(letter("t", ""))[0]
	declared, qosDone := []servertest.Method{{50, 11}}, []servertest.Method{{60, 11}}
	taken := []servertest.Method{{60, 71}, {60, 72}} // or empty: other calls have the message
	calls := map[*program.Process]string{}
	for _, call := range []struct {
		silence []servertest.Method
		args    []string
		names   string
	}{ // at the same time: each takes as long as a request may
		{declared, []string{"dead", "list"}, `look into queue "staging.dead"`},
		{taken, []string{"dead", "show", id}, `take a message from queue "staging.dead"`},
		{qosDone, []string{"dead", "discard", "--all", "--yes"}, `remove messages from queue "staging.dead"`},
		{qosDone, []string{"dead", "replay", id}, `remove messages from queue "staging.dead"`},
		{declared, []string{"orphans", "sweep"}, `look at queue "staging"`},
		{declared, []string{"topology", "declare"}, `queue "staging"`},
		{declared, []string{"message", id}, `look into queue "staging.dead"`},
		{declared, []string{"status"}, `ask for the queues`},
		{declared, []string{"doctor"}, `look at queue "staging"`},
	} {
		_, through := servertest.NewGate(t, s.AMQP, func(f servertest.Frame) bool { return f.Reply && slices.Contains(call.silence, f.Method) })
		calls[s.also("BRIDGE_AMQP_URL="+through+"?heartbeat=600").start(call.args...)] = call.names
	}
	for call, names := range calls {
		code, said := call.Await(), strings.Join(strings.Fields(call.Stdout.String()+call.Stderr.String()), " ")
		if code == 0 || !strings.Contains(said, names) || !strings.Contains(said, "no answer from the broker") {
			t.Errorf("%s: exit code %d, it says %s, without %s", call, code, said, names)
		}
	}
}
