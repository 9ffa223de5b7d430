package compose

import (
	"context"
	"encoding/json"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

var printed = regexp.MustCompile(`(?m)^rabbitmqctl set_permissions -p '/' '(.*)' '(.*)' '(.*)' '(.*)'$`)

// Each program of the stack has a broker login of its own, with the rights that bridgectl grants
// prints for it.
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

var (
	granted = regexp.MustCompile(`(?m)^GRANT .*;$`)
	service = regexp.MustCompile(`(?m)^  ([a-z-]+):(?: #.*)?\n(?:    .*\n)+`)
	given   = regexp.MustCompile(`(?m)^    secrets: (.*)$`)
	anchor  = regexp.MustCompile(`&([a-z-]+) (\{source: .*?\})`)
	source  = regexp.MustCompile(`source: (\w+)|[[ ](\w+)[,\]]`)
)

var databases = []string{"postgres", "mariadb", "sqlserver"}

// programs maps the stack's logins at each database to their roles.
var programs = map[string]string{"migrate": "migrate", "verifier": "verifier", "gateway": "gateway", "shop": "sender", "operator": "operator"}

// The stack's scripts give each login the rights that bridgectl grants prints for its role.
func TestTheLoginsOfTheStackHaveThePrintedRights(t *testing.T) {
	for _, database := range databases {
		logins, grants := read(t, "demo-secrets/"+database+"_logins.sql"), read(t, database+"/grants.sql")
		passwords := make(map[string]bool)
		for name, role := range programs {
			address := strings.TrimSpace(read(t, "demo-secrets/"+database+"_"+name+"_url"))
			parsed, err := url.Parse(address)
			if err != nil {
				t.Fatal(err)
			}
			password, _ := parsed.User.Password()
			passwords[password] = true
			if parsed.User.Username() != name || !regexp.MustCompile(`CREATE (ROLE|USER|LOGIN) ["'[]`+name+`\W.*'`+password+`'`).MatchString(logins) {
				t.Errorf("%s: the URL of %s has another login than the script", database, name)
			}
			script := grants
			if name == "migrate" { // creates the tables, on which the others have rights
				script = logins
			}
			_, part, _ := strings.Cut(script, "-- bridgectl grants "+role+" --login "+name+"\n")
			part, _, _ = strings.Cut(part, "\n\n")
			r := program.Run(t, "bridgectl", "BRIDGE_DATABASE_URL="+address, "BRIDGE_INSECURE=true", "grants", role, "--login", name)
			if got, want := granted.FindAllString(part, -1), granted.FindAllString(r.Stdout, -1); len(want) == 0 || !slices.Equal(got, want) {
				t.Errorf("%s: %s has the rights\n%q, and printed are\n%q", database, name, got, want)
			}
		}
		if len(passwords) != len(programs) {
			t.Errorf("%s: two logins share a password", database)
		}
	}
}

// Each container has the logins of its program and no others.
func TestEachContainerOfTheStackHasItsOwnLoginsOnly(t *testing.T) {
	want := map[string][]string{"rabbitmq": {"rabbitmq_definitions"}, "grafana": {"grafana_password"}, "sqlserver-init": {"sqlserver_admin_password", "sqlserver_logins"}}
	for _, d := range databases {
		want[d] = []string{d + "_admin_password", d + "_logins"}
		want["grants-"+d] = []string{d + "_admin_password"}
		for _, job := range []string{"migrate-", "gateway-migrate-", "shop-migrate-"} {
			want[job+d] = []string{d + "_migrate_url"}
		}
		for name, login := range map[string]string{"verifier": "verifier", "gateway": "gateway", "shop": "shop", "bridgectl": "operator"} {
			want[name+"-"+d] = []string{"amqp_" + login + "_url", d + "_" + login + "_url"}
		}
	}
	want["sqlserver"] = []string{"sqlserver_admin_password"} // its image runs no scripts
	text := read(t, "compose.yaml")
	for _, found := range anchor.FindAllStringSubmatch(text, -1) {
		text = strings.ReplaceAll(text, "*"+found[1]+"]", found[2]+"]")
		text = strings.ReplaceAll(text, "*"+found[1]+",", found[2]+",")
	}
	for _, found := range service.FindAllStringSubmatch(text, -1) {
		var got []string
		if line := given.FindStringSubmatch(found[0]); line != nil {
			for _, name := range source.FindAllStringSubmatch(line[1], -1) {
				got = append(got, name[1]+name[2])
			}
		}
		if slices.Sort(got); !slices.Equal(got, want[found[1]]) {
			t.Errorf("%s has the secrets %q, want %q", found[1], got, want[found[1]])
		}
		delete(want, found[1])
	}
	for name := range want {
		t.Errorf("compose.yaml has no service %s", name)
	}
}
