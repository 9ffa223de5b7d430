package bridgectl_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

func TestAHealthyBrokerIsAllWell(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.tool("BRIDGE_AUDIT=100", "BRIDGE_ALLOW=:emails")
	w.queue("emails", nil)
	b.must("topology", "declare")
	w.consume("twoqueue", "twoqueue.waiting")
	w.policy("harmless", "^twoqueue", map[string]any{"max-in-memory-length": 1000})
	d, code := b.until(func(d diagnosis, _ int) bool {
		return d.Unknown <= 1 && d.has("policies of twoqueue.waiting", inspect.OK, `"harmless"`) && d.has("disk watermark", inspect.OK, "")
	}, "broker")
	// RabbitMQ does not expose its consumer timeout.
	if code != 0 || d.Errors+d.Warnings != 0 || !d.has("consumer timeout", inspect.Unknown, "15m10s") {
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

func TestTheDoctorFindsTheFaultsOfABroker(t *testing.T) {
	t.Parallel()
	for _, c := range brokenBrokers {
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
			d, code := b.until(func(d diagnosis, _ int) bool {
				return !slices.ContainsFunc(c.finds, func(f found) bool { return !d.has(f.check, f.level, f.words) })
			}, "broker")
			worst := slices.ContainsFunc(c.finds, func(f found) bool { return f.level == inspect.Error })
			if (code == exitUnwell) != (d.Errors > 0) || code != 0 && code != exitUnwell || worst && code != exitUnwell {
				t.Errorf("exit code %d with %d errors", code, d.Errors)
			}
			if c.after == nil && worst && strings.HasPrefix(c.finds[0].check, "arguments") {
				// A verifier refuses every configuration that the doctor calls an error.
				if r := b.run("topology", "declare"); r.Code != 1 {
					t.Errorf("topology declare: exit code %d, %s%s", r.Code, r.Stdout, r.Stderr)
				}
			}
		})
	}
}

// RabbitMQ 4.3 can delay the messages that a consumer gives back, which changes their order.
func TestTheDoctorFindsDelaysThatChangeTheOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if !servertest.FeaturesOf(t, w.url).DelayedRetry {
		t.Skip("this release has no delayed retry")
	}
	w.policy("delay", ".*", map[string]any{"delayed-retry-type": "failed", "delayed-retry-min": 1000})
	receiver := idempotency.ReceiverQueues("receiver", &idempotency.ReceiverOptions{SingleActiveConsumer: true})
	for _, queue := range receiver {
		w.queue(queue.Name, queue.Arguments)
	}
	b := w.tool("BRIDGE_ORDERED_SHARDS=1")
	b.must("topology", "declare")
	b.until(func(d diagnosis, _ int) bool {
		return d.has("policies of twoqueue.ordered.0", inspect.Error, `delayed-retry-type is "failed"`) &&
			d.has("policies of twoqueue", inspect.Warning, `delayed-retry-type is "failed"`) &&
			d.has("receiver's queue receiver", inspect.Error, "delayed-retry-type is failed")
	}, "broker", "--receiver", "receiver")
}

func TestTheDoctorFindsForeignConsumers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.tool()
	b.must("topology", "declare")
	w.consume("twoqueue", "twoqueue.waiting", "twoqueue.dead")
	for _, queue := range []string{"twoqueue", "twoqueue.dead"} {
		if _, err := w.channel().Consume(queue, "", false, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	d, _ := b.until(func(d diagnosis, _ int) bool {
		return d.has("consumers of twoqueue", inspect.Error, "as guest") && d.has("consumers of twoqueue.dead", inspect.Warning, "as guest")
	}, "broker")
	for _, f := range append(d.of("consumers of twoqueue"), d.of("consumers of twoqueue.dead")...) {
		if strings.Count(f.Text, "->") != 1 {
			t.Errorf("one is foreign, not %s", f.Text)
		}
	}
}

func TestTheDoctorLooksNoFurtherThanTheLoginMay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.tool()
	b.must("topology", "declare")
	w.awaitNodes("")

	const amqp, api = "BRIDGE_AMQP_URL=", "BRIDGE_MANAGEMENT_URL="
	user := func(configure, write, read string) (variable, name string) {
		address := servertest.User(t, w.url, configure, write, read)
		parsed, err := url.Parse(address)
		must(t, err)
		return amqp + address, parsed.User.Username()
	}
	tagged := func(tags string) string {
		_, name := user("^$", "^amq[.]default$", "^twoqueue$")
		w.manage(http.MethodPut, "/users/"+name, map[string]any{"password": "secret", "tags": tags})
		return api + strings.Replace(w.server.ManagementURL(), "guest:guest", name+":secret", 1)
	}
	fixed, _ := user("^$", ".*", ".*") // a verifier with this login could not query the arguments either
	limited, name := user("^$", "^amq[.]default$", "^twoqueue$")
	silent, _ := user("", "^orders$", ".*")
	few, fewName := user(".*", ".*", ".*")
	w.manage(http.MethodPut, "/user-limits/"+fewName+"/max-channels", map[string]any{"value": 6}) // a verifier with a missing exchange forwards nothing then
	unseen := 0                                                                                   // queues
	if servertest.FeaturesOf(t, w.url).LookNeedsRight {
		unseen = 2
	}
	for _, c := range []struct {
		env    []string
		errors int
		finds  []found
	}{
		{[]string{api}, 0, []found{{"management API", inspect.Unknown, "without it"}}},
		{[]string{api, fixed}, 0, []found{
			{"arguments of twoqueue", inspect.Warning, "cannot check them"},
			{"arguments of twoqueue.waiting", inspect.Warning, "cannot check them"},
			{"arguments of twoqueue.dead", inspect.Warning, "cannot check them"},
		}},
		{[]string{fixed}, 0, []found{{"arguments of twoqueue", inspect.OK, "quorum"}}}, // the API reports them
		{[]string{limited}, 2 + unseen, []found{
			{"rights", inspect.Error, name + ` may not read "twoqueue.waiting"`},
			{"rights", inspect.Error, name + ` may not read "twoqueue.dead"`},
			{"publishing", inspect.OK, ""},
		}},
		{[]string{silent}, 2, []found{
			{"publishing", inspect.Error, "may not publish to the default exchange"},
			{"rights", inspect.Error, `may not write "amq.default"`},
		}},
		{[]string{few}, 1, []found{{"channel limit", inspect.Error, "may have 6 channels"}}},
		{[]string{tagged("monitoring")}, 0, []found{
			{"rights", inspect.Unknown, "to an administrator only"},
			{"arguments of twoqueue", inspect.OK, ""},
			{"alarms", inspect.OK, ""},
		}},
		{[]string{tagged("management")}, 0, []found{
			{"alarms", inspect.Unknown, "does not show"},
			{"arguments of twoqueue", inspect.OK, ""},
		}},
	} {
		d, code := b.also(c.env...).examine("broker")
		for _, f := range c.finds {
			d.expect(t, f.check, f.level, f.words)
		}
		if d.Errors != c.errors || (code == exitUnwell) != (c.errors > 0) {
			t.Errorf("%v: exit code %d\n%s", c.env, code, d)
		}
	}
	if d, _ := b.also(api).examine("broker"); len(d.of("arguments of twoqueue")) != 0 {
		t.Errorf("it reports arguments without the API\n%s", d)
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
	// If the management URL has no login, the doctor uses the login of the broker's URL.
	w.tool().must("topology", "declare")
	d, _ := w.tool("BRIDGE_MANAGEMENT_URL=" + strings.TrimSuffix(strings.Replace(api, "guest:guest@", "", 1), "/api")).examine("broker")
	d.expect(t, "arguments of twoqueue", inspect.OK, "")
}

// The shared broker serves tests that run beside this one, so the alarm is raised on a broker of
// its own.
func TestTheDoctorSeesAnAlarm(t *testing.T) {
	t.Parallel()
	server := servertest.StartRabbitMQ(t, &servers.RabbitMQOptions{Plugins: []string{"rabbitmq_management"}, Config: "collect_statistics_interval = 1000"})
	t.Cleanup(server.Kill) // its data is not needed, and an orderly stop takes seconds
	b := withEnv(t, "BRIDGE_AMQP_URL="+server.URL(), "BRIDGE_MANAGEMENT_URL="+server.ManagementURL())
	must(t, server.SetMemoryAlarm(t.Context(), true))
	// Each examination tries to publish for ten seconds and fails, so the test first waits until
	// the API reports the alarm.
	w := &world{t: t, server: server.RabbitMQAddress}
	w.awaitNodes(`"mem_alarm":true`)
	// Without the API the blocked connection reports the alarm.
	blind := b.also("BRIDGE_MANAGEMENT_URL=").start("doctor", "-o", "json", "broker")
	d, code := b.examine("broker")
	d.expect(t, "alarms", inspect.Error, "of memory")
	d.expect(t, "publishing", inspect.Error, "an alarm is on")
	if code != exitUnwell {
		t.Errorf("exit code %d\n%s", code, d)
	}
	if code, said := blind.Await(), blind.Stdout.String(); code != exitUnwell || !strings.Contains(said, "an alarm is on") {
		t.Errorf("without the API: exit code %d\n%s", code, said)
	}
}

// Without counts the tool reports no number instead of 0: a verifier may hold messages.
func TestCountsThatABrokerDoesNotKeepAreUnknown(t *testing.T) {
	t.Parallel()
	server := servertest.StartRabbitMQ(t, &servers.RabbitMQOptions{Plugins: []string{"rabbitmq_management"}, Config: "management_agent.disable_metrics_collector = true"})
	t.Cleanup(server.Kill)
	b := withEnv(t, "BRIDGE_AMQP_URL="+server.URL(), "BRIDGE_MANAGEMENT_URL="+server.ManagementURL())
	b.must("topology", "declare")
	for _, args := range [][]string{{"status"}, {"message", uuid.NewString()}} {
		var facts struct {
			Held   *int64
			Queues json.RawMessage
		}
		b.json(&facts, args...)
		if facts.Held != nil || strings.Contains(string(facts.Queues), `"held": 0`) {
			t.Errorf("%s says that none are held: %s", args[0], facts.Queues)
		}
	}
}

func TestTheDoctorFindsVerifiersOfAnotherLedger(t *testing.T) {
	t.Parallel()
	vhost, topology := servertest.Vhost(t), bridge.Topology{Queue: "staging"}
	s, other := stage.On(t, stage.Postgres, vhost, topology), stage.On(t, stage.Postgres, vhost, topology)
	s.Verify(verifier.Options{})
	out := withEnv(t, "BRIDGE_AMQP_URL="+vhost, "BRIDGE_QUEUE=staging").must("grants", "operator", "--login", "o", "--broker")
	rights := regexp.MustCompile(`(?m)'([^']*)' '([^']*)' '([^']*)'$`).FindStringSubmatch(out)
	login := servertest.User(t, vhost, rights[1], rights[2], rights[3])
	for of, want := range map[*stage.Stage]bool{s: false, other: true} {
		d, _ := withEnv(t, "BRIDGE_AMQP_URL="+login, "BRIDGE_DATABASE_URL="+program.DatabaseURL(t, of.DatabaseURL), "BRIDGE_QUEUE=staging").examine()
		if d.has("ledger of staging", inspect.Error, of.Ledger.Identity().String()) != want {
			t.Errorf("it is another ledger: %t\n%s", want, d)
		}
	}

	// The claim cannot be examined if the login lacks the right, or if another application owns
	// the queue.
	login = servertest.User(t, vhost, `^staging(\.dead|\.waiting)?$`, rights[2], rights[3])
	d, _ := withEnv(t, "BRIDGE_AMQP_URL="+login, "BRIDGE_DATABASE_URL="+program.DatabaseURL(t, other.DatabaseURL), "BRIDGE_QUEUE=staging").examine()
	d.expect(t, "ledger of staging", inspect.Warning, "ACCESS_REFUSED")
	if _, err := s.Channel.QueueDeclare("orders.ledger", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	d, _ = withEnv(t, "BRIDGE_AMQP_URL="+vhost, "BRIDGE_DATABASE_URL="+program.DatabaseURL(t, other.DatabaseURL), "BRIDGE_QUEUE=orders").examine()
	d.expect(t, "ledger of orders", inspect.Warning, "auto_delete")
}

// A verifier on another staging queue of the same ledger stages carried messages of this queue's
// senders in its own queue. A verifier of another ledger does not.
func TestTheDoctorFindsVerifiersOfThisLedgerOnOtherQueues(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := stage.On(t, stage.Postgres, w.url, bridge.Topology{Queue: "staging"})
	foreign := stage.On(t, stage.Postgres, w.url, bridge.Topology{Queue: "foreign"})
	s.Verify(verifier.Options{})
	foreign.Verify(verifier.Options{})
	b := w.tool("BRIDGE_DATABASE_URL="+program.DatabaseURL(t, s.DatabaseURL), "BRIDGE_QUEUE=staging")
	awaitQueue := func(name string) {
		s.Eventually("the API shows queue "+name, func() bool {
			return strings.Contains(string(w.manage(http.MethodGet, "/queues/"+url.PathEscape(w.vhost()), nil)), `"`+name+`"`)
		})
	}
	awaitQueue("foreign.ledger")
	conn, err := s.Broker.Connect(t.Context())
	must(t, err)
	defer conn.Close()
	must(t, bridge.Topology{Queue: "left"}.ClaimLedger(conn, s.Ledger.Identity())) // as a restart of the broker leaves it
	awaitQueue("left.ledger")
	const check = "other staging queues"
	if d, _ := b.examine(); len(d.of(check)) != 0 {
		t.Errorf("each ledger has one staging queue\n%s", d)
	}

	v, err := verifier.New(s.Ledger, s.Broker, &verifier.Options{Topology: bridge.Topology{Queue: "second"}, Logger: stage.Logger(t)})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	defer func() {
		cancel()
		must(t, servertest.Next(t, "the second verifier stops", ended))
	}()
	awaitQueue("second.ledger")
	d, _ := b.examine()
	d.expect(t, check, inspect.Warning, `verifiers of queue "second"`)
	if len(d.of(check)) != 1 {
		t.Errorf("it is one queue\n%s", d)
	}
	d, _ = b.also("BRIDGE_QUEUE=second").examine()
	d.expect(t, check, inspect.Warning, `verifiers of queue "staging"`)
}
