package bridgectl_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/tests/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestAHealthyBrokerIsAllWell(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.tool("BRIDGE_AUDIT=100", "BRIDGE_ALLOW=:emails")
	b.must("topology", "declare")
	w.consume("twoqueue", "twoqueue.waiting")
	w.policy("harmless", "^twoqueue", map[string]any{"max-in-memory-length": 1000})
	d, code := b.until(func(d diagnosis, _ int) bool {
		return d.Unknown <= 1 && d.has("policies of twoqueue.waiting", inspect.OK, `"harmless"`) && d.has("disk watermark", inspect.OK, "")
	}, "broker")
	// RabbitMQ tells nobody its consumer timeout.
	if code != 0 || d.Errors+d.Warnings != 0 || !d.has("consumer timeout", inspect.Unknown, "10m") {
		t.Errorf("exit code %d\n%s", code, d)
	}
	for _, check := range []string{
		"connection", "version", "publishing", "management API", "alarms", "disk watermark", "resources", "cluster", "rights",
		"arguments of twoqueue", "arguments of twoqueue.waiting", "arguments of twoqueue.dead", "arguments of twoqueue.dropped",
		"policies of twoqueue", "policies of twoqueue.dead", "policies of twoqueue.dropped",
		"members of twoqueue", "members of twoqueue.dead", "verifiers", "dead messages", "allow-list", "encryption", "encryption of the API",
	} {
		d.expect(t, check, inspect.OK, "")
	}
	d.expect(t, "verifiers", inspect.OK, "twoqueue has 1 consumer; 0 messages are ready there")
}

// A connection that others could read is said; the tests' own stay on this machine.
func TestTheDoctorFindsWhatGoesInTheClear(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.tool("BRIDGE_MANAGEMENT_URL=http://broker.example:15672")
	b.must("topology", "declare")
	d, _ := b.examine("broker")
	d.expect(t, "encryption", inspect.OK, "BRIDGE_AMQP_URL")
	d.expect(t, "encryption of the API", inspect.Warning, "without TLS")
}

// An open allow-list is said, and with an own table it is an error.
func TestTheDoctorFindsAnOpenAllowList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.tool()
	b.must("topology", "declare")
	d, _ := b.examine("broker")
	d.expect(t, "allow-list", inspect.Warning, "every target is allowed")
	d, code := b.also("BRIDGE_OWN_TABLE=orders.id").examine("broker")
	d.expect(t, "allow-list", inspect.Error, "verifiers refuse to start")
	if code != exitUnwell {
		t.Errorf("exit code %d", code)
	}
	d, _ = b.also("BRIDGE_ALLOW=*:*").examine("broker")
	d.expect(t, "allow-list", inspect.OK, "")
}

func TestTheDoctorFindsWhatIsWrongWithABroker(t *testing.T) {
	t.Parallel()
	for _, c := range misfits {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			b := w.tool(c.env...)
			if c.before != nil {
				c.before(w)
			}
			if c.after != nil {
				b.must("topology", "declare")
				c.after(w)
			}
			// Policies and depths take effect a moment later.
			d, code := b.until(func(d diagnosis, _ int) bool { return d.has(c.check, c.level, c.words) }, "broker")
			if (code == exitUnwell) != (d.Errors > 0) || code != 0 && code != exitUnwell {
				t.Errorf("exit code %d with %d errors", code, d.Errors)
			}
			if c.level == inspect.Error && code != exitUnwell {
				t.Errorf("exit code %d", code)
			}
			if c.after == nil && strings.HasPrefix(c.check, "arguments") && c.level == inspect.Error {
				// What the doctor calls an error a verifier refuses too, as far as it can see it.
				if r := b.run("topology", "declare"); r.Code != 1 && !strings.Contains(c.words, "deletes itself") {
					t.Errorf("topology declare: exit code %d, %s%s", r.Code, r.Stdout, r.Stderr)
				}
			}
		})
	}
}

func TestTheDoctorFindsForeignConsumers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		queue string
		level inspect.Level
	}{{"twoqueue", inspect.Error}, {"twoqueue.dead", inspect.Warning}} {
		w := newWorld(t)
		b := w.tool()
		b.must("topology", "declare")
		w.consume("twoqueue", "twoqueue.waiting", "twoqueue.dead")
		if _, err := w.channel().Consume(c.queue, "", false, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		d, _ := b.until(func(d diagnosis, _ int) bool {
			return d.has("consumers of "+c.queue, c.level, "as guest")
		}, "broker")
		for _, f := range d.of("consumers of " + c.queue) {
			if strings.Count(f.Text, "->") != 1 {
				t.Errorf("one is foreign, not %s", f.Text)
			}
		}
	}
}

func TestTheDoctorLooksNoFurtherThanTheLoginMay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.tool()
	b.must("topology", "declare")

	d, code := b.also("BRIDGE_MANAGEMENT_URL=").examine("broker")
	d.expect(t, "management API", inspect.Unknown, "without it")
	if code != 0 || d.Errors != 0 || len(d.of("arguments of twoqueue")) != 0 {
		t.Errorf("exit code %d\n%s", code, d)
	}

	// Nor could a verifier with this login.
	fixed := servertest.User(t, w.url, "^$", ".*", ".*")
	d, code = b.also("BRIDGE_AMQP_URL="+fixed, "BRIDGE_MANAGEMENT_URL=").examine("broker")
	for _, queue := range []string{"twoqueue", "twoqueue.waiting", "twoqueue.dead"} {
		d.expect(t, "arguments of "+queue, inspect.Warning, "they are unchecked")
	}
	if code != 0 || d.Errors != 0 {
		t.Errorf("exit code %d\n%s", code, d)
	}
	d, _ = b.also("BRIDGE_AMQP_URL=" + fixed).examine("broker")
	d.expect(t, "arguments of twoqueue", inspect.OK, "quorum") // the API tells them

	limited := servertest.User(t, w.url, "^$", "^amq[.]default$", "^twoqueue$")
	parsed, err := url.Parse(limited)
	if err != nil {
		t.Fatal(err)
	}
	name := parsed.User.Username()
	d, code = b.also("BRIDGE_AMQP_URL=" + limited).examine("broker")
	d.expect(t, "rights", inspect.Error, name+` may not read "twoqueue.waiting"`)
	d.expect(t, "rights", inspect.Error, name+` may not read "twoqueue.dead"`)
	d.expect(t, "publishing", inspect.OK, "")
	if len(d.of("rights")) != 2 || code != exitUnwell {
		t.Errorf("exit code %d\n%s", code, d)
	}

	silent := servertest.User(t, w.url, "", "^orders$", ".*")
	d, _ = b.also("BRIDGE_AMQP_URL=" + silent).examine("broker")
	d.expect(t, "publishing", inspect.Error, "may not publish to the default exchange")
	d.expect(t, "rights", inspect.Error, `may not write "amq.default"`)

	management := func(tags string) string {
		w.manage(http.MethodPut, "/users/"+name, map[string]any{"password": "secret", "tags": tags})
		return strings.Replace(w.server.ManagementURL(), "guest:guest", name+":secret", 1)
	}
	d, code = b.also("BRIDGE_MANAGEMENT_URL=" + management("monitoring")).examine("broker")
	d.expect(t, "rights", inspect.Unknown, "to an administrator only")
	d.expect(t, "arguments of twoqueue", inspect.OK, "")
	d.expect(t, "alarms", inspect.OK, "")
	if code != 0 {
		t.Errorf("exit code %d\n%s", code, d)
	}
	d, code = b.also("BRIDGE_MANAGEMENT_URL=" + management("management")).examine("broker")
	d.expect(t, "alarms", inspect.Unknown, "does not show")
	d.expect(t, "arguments of twoqueue", inspect.OK, "")
	if code != 0 {
		t.Errorf("exit code %d\n%s", code, d)
	}
}

func TestTheDoctorSaysWhyItCannotLook(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wrong := strings.Replace(w.url, "guest:guest", "guest:s3cret", 1)
	api := w.server.ManagementURL()
	for _, c := range []struct {
		name       string
		env        []string
		check, say string
	}{
		{"a wrong password", []string{"BRIDGE_AMQP_URL=" + wrong}, "connection", "user or password refused"},
		{"no broker", []string{"BRIDGE_AMQP_URL=amqp://guest:s3cret@127.0.0.1:1/"}, "connection", "connection refused"},
		{"another virtual host", []string{"BRIDGE_AMQP_URL=" + w.server.VhostURL("nowhere")}, "connection", "virtual host missing"},
		{"a wrong password for the API", []string{"BRIDGE_MANAGEMENT_URL=" + strings.Replace(api, "guest:guest", "guest:s3cret", 1)}, "management API", "refuses the login"},
		{"no API", []string{"BRIDGE_MANAGEMENT_URL=http://guest:s3cret@127.0.0.1:1"}, "management API", "connection refused"},
		{"something else in its place", []string{"BRIDGE_MANAGEMENT_URL=" + strings.Replace(w.server.ManagementURL(), "/api", "/cli", 1)}, "management API", "it answers 406"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := *w.tool(c.env...)
			b.t = t
			d, code := b.examine("broker")
			d.expect(t, c.check, inspect.Error, c.say)
			if code != exitUnwell || strings.Contains(d.String(), "s3cret") {
				t.Errorf("exit code %d\n%s", code, d)
			}
		})
	}
	// The login is the broker's where the URL has none.
	w.tool().must("topology", "declare")
	d, _ := w.tool("BRIDGE_MANAGEMENT_URL=" + strings.TrimSuffix(strings.Replace(api, "guest:guest@", "", 1), "/api")).examine("broker")
	d.expect(t, "arguments of twoqueue", inspect.OK, "")
}

// withManagement is a broker that tells of its state every second, not every five.
var withManagement = &servers.RabbitMQOptions{Plugins: []string{"rabbitmq_management"}, Config: "collect_statistics_interval = 1000"}

// The shared broker serves tests that run beside this one: alarms are set on another.
func TestTheDoctorSeesAlarms(t *testing.T) {
	t.Parallel()
	server := servertest.StartRabbitMQ(t, withManagement)
	b := withEnv(t, "BRIDGE_AMQP_URL="+server.URL(), "BRIDGE_MANAGEMENT_URL="+server.ManagementURL())
	b.must("topology", "declare")
	d, code := b.until(func(d diagnosis, _ int) bool {
		return d.has("disk watermark", inspect.Warning, "stops taking messages when 48 MiB of disk are left")
	}, "broker")
	d.expect(t, "alarms", inspect.OK, "")
	if code != 0 {
		t.Errorf("exit code %d\n%s", code, d)
	}
	if err := server.SetMemoryAlarm(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	d, code = b.until(func(d diagnosis, _ int) bool { return d.has("alarms", inspect.Error, "of memory") }, "broker")
	d.expect(t, "publishing", inspect.Error, "an alarm is on")
	if code != exitUnwell {
		t.Errorf("exit code %d\n%s", code, d)
	}
	// Without the API the blocked connection tells it.
	d, _ = b.also("BRIDGE_MANAGEMENT_URL=").examine("broker")
	d.expect(t, "publishing", inspect.Error, "an alarm is on")
	if err := server.SetMemoryAlarm(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Ctl(t.Context(), "set_disk_free_limit", "900000GB"); err != nil {
		t.Fatal(err)
	}
	d, _ = b.until(func(d diagnosis, _ int) bool { return d.has("alarms", inspect.Error, "of disk left") }, "broker")
	d.expect(t, "disk watermark", inspect.OK, "")
}

func TestTheDoctorSeesAClusterLoseItsNodes(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster of three")
	}
	t.Parallel()
	cluster := servertest.StartCluster(t, 3, withManagement)
	first := cluster.Nodes[0]
	b := withEnv(t, "BRIDGE_AMQP_URL="+first.URL(), "BRIDGE_MANAGEMENT_URL="+first.ManagementURL())
	b.must("topology", "declare")
	b.until(func(d diagnosis, _ int) bool {
		return d.has("members of twoqueue", inspect.OK, "3 of 3") && d.has("cluster", inspect.OK, "3 nodes, all running")
	}, "broker")
	b.also("BRIDGE_QUEUE=plain", "BRIDGE_CLASSIC=true").must("topology", "declare")
	b.also("BRIDGE_QUEUE=plain", "BRIDGE_CLASSIC=true").until(func(d diagnosis, _ int) bool {
		return d.has("members of plain", inspect.Warning, "on one of 3 nodes")
	}, "broker")
	cluster.Nodes[2].Kill()
	d, code := b.until(func(d diagnosis, _ int) bool { return d.has("members of twoqueue", inspect.Warning, "2 of 3") }, "broker")
	d.expect(t, "cluster", inspect.Warning, "does not run")
	if code != 0 {
		t.Errorf("exit code %d\n%s", code, d)
	}
}
