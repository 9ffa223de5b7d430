package compose

import (
	"context"
	"encoding/json"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

var printed = regexp.MustCompile(`(?m)^rabbitmqctl set_permissions -p '/' '(.*)' '(.*)' '(.*)' '(.*)'$`)

// Each program of the stack has a login of its own at the broker, with the rights that bridgectl
// grants prints for it.
func TestEachProgramOfTheStackHasItsLoginAtTheBroker(t *testing.T) {
	var defined struct {
		Users       []struct{ Name, Password, Tags string }
		Permissions []struct{ User, Vhost, Configure, Write, Read string }
	}
	if err := json.Unmarshal([]byte(read(t, "demo-secrets/rabbitmq_definitions.json")), &defined); err != nil {
		t.Fatal(err)
	}
	roles := map[string]string{"verifier": "verifier", "gateway": "gateway", "shop": "sender", "operator": "operator"}
	if len(defined.Users) != len(roles) || len(defined.Permissions) != len(roles) {
		t.Fatalf("%d users and %d permissions, want %d", len(defined.Users), len(defined.Permissions), len(roles))
	}
	for _, p := range defined.Permissions {
		r := program.Run(t, "bridgectl", "BRIDGE_AUDIT=1000", "BRIDGE_ALLOW=:emails", "BRIDGE_EXCHANGE=twoqueue.stage", "BRIDGE_AMQP_URL=amqp://rabbitmq/",
			"BRIDGE_DATABASE_URL=postgres://postgres/shop", "BRIDGE_INSECURE=true", "grants", roles[p.User], "--login", p.User, "--broker")
		if want := printed.FindStringSubmatch(r.Stdout); want == nil || p.Vhost != "/" || p.User != want[1] || p.Configure != want[2] || p.Write != want[3] || p.Read != want[4] {
			t.Errorf("%s has the rights %+v, and printed are\n%s%s", p.User, p, r.Stdout, r.Stderr)
		}
	}
	server := servertest.RabbitMQ(t)
	definitions, err := filepath.Abs(folder + "/demo-secrets/rabbitmq_definitions.json")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := server.Ctl(t.Context(), "import_definitions", definitions); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, user := range defined.Users {
		t.Cleanup(func() { _, _ = server.Ctl(context.WithoutCancel(t.Context()), "delete_user", user.Name) })
		address, err := url.Parse(strings.TrimSpace(read(t, "demo-secrets/amqp_"+user.Name+"_url")))
		if err != nil {
			t.Fatal(err)
		}
		if password, _ := address.User.Password(); address.User.Username() != user.Name || password != user.Password || address.Host != "rabbitmq:5672" {
			t.Errorf("the URL of %s has another login", user.Name)
		}
		address.Host = server.Addr()
		conn, err := amqp.Dial(address.String())
		if err != nil {
			t.Errorf("%s: %v", user.Name, err)
			continue
		}
		_ = conn.Close()
		if monitors := user.Tags == "monitoring"; monitors != (user.Name == "operator") {
			t.Errorf("%s has the tags %q", user.Name, user.Tags)
		}
	}
}
