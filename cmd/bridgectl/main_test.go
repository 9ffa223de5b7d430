package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier"
)

// The other commands take -help; who has learnt that there must not be told about a
// shorthand flag 'e'.
func TestHelpMayBeAskedForWithOneDash(t *testing.T) {
	for _, args := range []string{"-help", "--help", "-h", "dead -help", "dead replay --all -help"} {
		var out, errs bytes.Buffer
		code := run(t.Context(), strings.Fields(args), &out, &errs)
		if code != exitDone || !strings.Contains(out.String(), "\nUsage:\n") || errs.Len() > 0 {
			t.Errorf("%s: exit code %d, %q%q", args, code, out.String(), errs.String())
		}
	}
}

func TestWhatTheUserHasWrongIsCode2(t *testing.T) {
	for _, c := range []struct{ args, name, value, want string }{
		{"migrate status", "BRIDGE_DATABASE_URL", "oracle://u:s3cret@h/d", "BRIDGE_DATABASE_URL: open database: not a database URL: it must start with"},
		{"topology declare", "BRIDGE_AMQP_URL", "http://u:s3cret@h/", "BRIDGE_AMQP_URL: broker URL is not usable: it is not of the form"},
		{"topology print", "BRIDGE_ALLOW", "emails", `BRIDGE_ALLOW: "emails" is not EXCHANGE:KEY; write :emails for the queue`},
		{"dead list --reason=unroutible", "BRIDGE_QUEUE", "q", `--reason: "unroutible" is not usable; give some of malformed, foreign,`},
	} {
		t.Run(c.args+" "+c.name, func(t *testing.T) {
			t.Setenv(c.name, c.value)
			var out, errs bytes.Buffer
			code := run(t.Context(), strings.Fields(c.args), &out, &errs)
			if code != exitMisused || out.Len() > 0 || !strings.HasPrefix(errs.String(), "bridgectl: "+c.want) || strings.Contains(errs.String(), "s3cret") {
				t.Errorf("exit code %d, %q%q", code, out.String(), errs.String())
			}
		})
	}
}

func TestReplayKeepsToTheAllowList(t *testing.T) {
	dead := func(queue, reason string, copies ...any) *deadMessage {
		t.Helper()
		m := bridge.Message{ID: uuid.New(), RoutingKey: queue}
		if copies != nil {
			m.Publishing.Headers = amqp.Table{"CC": copies}
		}
		staged, err := wire.Encode(m, uuid.New())
		if err != nil {
			t.Fatal(err)
		}
		staged.Headers[wire.HeaderDeadVerdict], staged.Headers[wire.HeaderDeadReason] = "committed", reason
		return readDead(amqp.Delivery{Headers: staged.Headers, MessageId: staged.MessageId})
	}
	topology := bridge.Topology{Queue: "staging"}
	unset := &planner{permits: (&verifier.Options{Topology: topology}).Permits()}
	set := &planner{permits: (&verifier.Options{Topology: topology, Allow: []verifier.Allow{{RoutingKey: "good*"}}}).Permits(), listed: true}
	elsewhere := *set
	elsewhere.to = &bridge.Target{RoutingKey: "anywhere"}
	forced := *set
	forced.force = true
	for _, c := range []struct {
		name    string
		planner *planner
		m       *deadMessage
		sent    bool
	}{
		{"on the list", set, dead("good", wire.DeadUnroutable), true},
		{"not on the list", set, dead("bad", wire.DeadUnroutable), false},
		{"a copy that is not on the list", set, dead("good", wire.DeadUnroutable, "bad"), false},
		{"copies that are on the list", set, dead("good", wire.DeadUnroutable, "good too"), true},
		{"on the list since", set, dead("good", wire.DeadNotAllowed), true},
		{"not on the list, but forced", &forced, dead("bad", wire.DeadNotAllowed), true},
		{"not on the list, and sent elsewhere", &elsewhere, dead("bad", wire.DeadNotAllowed), true},
		{"no list here", unset, dead("bad", wire.DeadUnroutable), true},
		{"no list here, but a verifier had one", unset, dead("bad", wire.DeadNotAllowed), false},
		{"the verifiers' own queue", unset, dead("staging", wire.DeadUnroutable), false},
	} {
		plan := c.planner.decide(c.m, knowledge{})
		if sent := len(plan.out) == 1; sent != c.sent || sent == (plan.refusal != "") {
			t.Errorf("%s: %+v", c.name, plan)
		}
	}
}
