package bridgectl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// exitUnwell is the doctor's exit code when it has found an error.
const exitUnwell = 3

// diagnosis is the doctor's output with -o json.
type diagnosis struct {
	Groups []struct {
		Name     string
		Findings []inspect.Finding
	}
	Errors, Warnings, Unknown, OK int
}

// examine runs the doctor.
func (b *tool) examine(args ...string) (diagnosis, int) {
	b.t.Helper()
	r := b.run(append([]string{"doctor", "-o", "json"}, args...)...)
	var d diagnosis
	if err := json.Unmarshal([]byte(r.Stdout), &d); err != nil || r.Stderr != "" {
		b.t.Fatalf("doctor: exit code %d, %v, stderr %q, stdout\n%s", r.Code, err, r.Stderr, r.Stdout)
	}
	return d, r.Code
}

// of returns the findings of a check.
func (d diagnosis) of(check string) []inspect.Finding {
	var all []inspect.Finding
	for _, g := range d.Groups {
		for _, f := range g.Findings {
			if f.Check == check {
				all = append(all, f)
			}
		}
	}
	return all
}

func (d diagnosis) String() string {
	var text strings.Builder
	for _, g := range d.Groups {
		for _, f := range g.Findings {
			fmt.Fprintf(&text, "%s: %s: %s: %s > %s\n", g.Name, f.Check, f.Level, f.Text, f.Fix)
		}
	}
	return text.String()
}

// has reports whether a finding of this check has this level and contains these words.
func (d diagnosis) has(check string, level inspect.Level, words string) bool {
	for _, f := range d.of(check) {
		if f.Level == level && strings.Contains(f.Text, words) && (f.Fix != "") == (level != inspect.OK) {
			return true
		}
	}
	return false
}

// expect fails the test unless the check has a finding of this level with these words.
func (d diagnosis) expect(t *testing.T, check string, level inspect.Level, words string) {
	t.Helper()
	if !d.has(check, level, words) {
		t.Errorf("no finding %q of level %s with %q and a fix in\n%s", check, level, words, d)
	}
}

// world is a virtual host of a broker, for one test.
type world struct {
	t      *testing.T
	server servers.RabbitMQAddress
	url    string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{t: t, url: servertest.Vhost(t), server: servertest.RabbitMQ(t)}
}

// tool returns bridgectl for this broker, with the management API.
func (w *world) tool(env ...string) *tool {
	return withEnv(w.t, "BRIDGE_AMQP_URL="+w.url, "BRIDGE_MANAGEMENT_URL="+w.server.ManagementURL()).also(env...)
}

func (w *world) vhost() string {
	parsed, err := url.Parse(w.url)
	must(w.t, err)
	return strings.TrimPrefix(parsed.Path, "/")
}

// manage sends a request to the management API and returns the answer.
func (w *world) manage(method, path string, body any) []byte {
	w.t.Helper()
	text, err := json.Marshal(body)
	must(w.t, err)
	ctx, cancel := context.WithTimeout(w.t.Context(), servertest.Patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, w.server.ManagementURL()+path, bytes.NewReader(text))
	must(w.t, err)
	request.Header.Set("Content-Type", "application/json")
	request.Close = true // leaves no connection, so no goroutine, behind
	response, err := http.DefaultClient.Do(request)
	must(w.t, err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode/100 != 2 {
		w.t.Fatalf("%s %s: %v, %s: %s", method, path, err, response.Status, answer)
	}
	return answer
}

// awaitNodes waits until the management API reports the nodes' limits, which a broker that has just
// started gathers later, and the text of a property.
func (w *world) awaitNodes(property string) {
	w.t.Helper()
	servertest.Eventually(w.t, "the API reports the nodes' limits and "+property, func() bool {
		nodes := string(w.manage(http.MethodGet, "/nodes", nil))
		return strings.Contains(nodes, `"mem_limit":`) && strings.Contains(nodes, `"disk_free_limit":`) && strings.Contains(nodes, property)
	})
}

func (w *world) policy(name, pattern string, definition map[string]any) {
	w.t.Helper()
	servertest.SetPolicy(w.t, w.url, name, pattern, definition)
}

func (w *world) operatorPolicy(name, pattern string, definition map[string]any) {
	w.t.Helper()
	w.manage(http.MethodPut, "/operator-policies/"+url.PathEscape(w.vhost())+"/"+name,
		map[string]any{"pattern": pattern, "definition": definition, "apply-to": "queues"})
}

// channel opens a channel as a foreign program would. It is closed when the test ends.
func (w *world) channel() *amqp.Channel {
	w.t.Helper()
	conn, err := amqp.Dial(w.url)
	must(w.t, err)
	w.t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	must(w.t, err)
	return ch
}

// queue declares a queue with wrong arguments.
func (w *world) queue(name string, args amqp.Table) {
	w.t.Helper()
	if _, err := w.channel().QueueDeclare(name, true, false, false, false, args); err != nil {
		w.t.Fatal(err)
	}
}

// exchange declares another exchange under the name of the senders' exchange.
func (w *world) exchange(kind string) {
	w.t.Helper()
	must(w.t, w.channel().ExchangeDeclare("twoqueue.stage", kind, true, false, false, false, nil))
}

// broker connects as our programs do. The connection is closed when the test ends.
func (w *world) broker() *bridge.Broker {
	w.t.Helper()
	broker, err := bridge.Dial(w.t.Context(), w.url, nil)
	must(w.t, err)
	w.t.Cleanup(broker.Close)
	return broker
}

func (w *world) publish(queue string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), servertest.Patience)
	defer cancel()
	message := bridge.Outgoing{Target: bridge.Target{RoutingKey: queue}, Publishing: amqp.Publishing{Body: []byte("x")}}
	must(w.t, w.broker().Publish(ctx, []bridge.Outgoing{message}))
}

// consume consumes queues as a verifier does.
func (w *world) consume(queues ...string) {
	w.t.Helper()
	conn, err := w.broker().Connect(w.t.Context())
	must(w.t, err)
	w.t.Cleanup(conn.Close)
	for _, queue := range queues {
		ch, err := conn.Channel()
		must(w.t, err)
		if _, err := ch.Consume(queue, "", false, false, false, false, nil); err != nil {
			w.t.Fatal(err)
		}
	}
}

// until runs the doctor until content returns true: the management API gathers some of its
// numbers only every few seconds.
func (b *tool) until(content func(d diagnosis, code int) bool, args ...string) (d diagnosis, code int) {
	b.t.Helper()
	servertest.Eventually(b.t, "the doctor's findings are complete", func() bool {
		d, code = b.examine(args...)
		return content(d, code)
	}, func() string { return fmt.Sprintf("exit code %d\n%s", code, d) })
	return d, code
}
