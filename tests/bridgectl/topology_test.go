package bridgectl_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestTopologyIsDeclaredAndPrinted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.tool("BRIDGE_AUDIT=7", "BRIDGE_QUEUE=other")
	text := b.must("topology", "declare", "--queue", "shop")
	for _, queue := range []string{"shop ", "shop.waiting ", "shop.dead ", "shop.dropped "} {
		if !strings.Contains(text, "\n"+queue) {
			t.Errorf("no %s in\n%s", queue, text)
		}
	}
	if again := b.must("topology", "declare", "--queue", "shop"); again != text {
		t.Errorf("the second time it says\n%s", again)
	}
	r := b.also("BRIDGE_CLASSIC=true").run("topology", "declare", "--queue", "shop")
	if r.Code != 1 || !strings.Contains(r.Stderr, `queue "shop" exists with another x-`) {
		t.Errorf("another type: %+v", r)
	}
}

// RabbitMQ imports the JSON of topology print. The result equals the result of topology declare.
func TestRabbitMQImportsThePrintedTopology(t *testing.T) {
	t.Parallel()
	for variant, rabbitmqctl := range map[string]bool{"BRIDGE_AUDIT=7": true, "BRIDGE_CLASSIC=true": false} {
		w := newWorld(t)
		b := w.tool(variant, "BRIDGE_EXCHANGE=twoqueue.stage")
		text := b.must("topology", "print", "-o", "json")
		if !json.Valid([]byte(text)) {
			t.Fatalf("not JSON:\n%s", text)
		}
		if rabbitmqctl {
			path := filepath.Join(t.TempDir(), "queues.json")
			must(t, os.WriteFile(path, []byte(text), 0o600))
			if output, err := servertest.RabbitMQ(t).Ctl(t.Context(), "import_definitions", path); err != nil {
				t.Fatalf("%v\n%s", err, output)
			}
		} else {
			w.manage(http.MethodPost, "/definitions", json.RawMessage(text)) // cheaper than rabbitmqctl
		}
		d, _ := b.examine("broker")
		d.expect(t, "arguments of twoqueue", "ok", "")
		d.expect(t, "arguments of twoqueue.waiting", "ok", "")
		d.expect(t, "arguments of twoqueue.dead", "ok", "")
		d.expect(t, "exchange twoqueue.stage", "ok", "")
		d.expect(t, "bindings of twoqueue.stage", "ok", "1 queue")
		if table := b.must("topology", "print"); !strings.Contains(table, "DIRECT EXCHANGE") {
			t.Errorf("no exchange in\n%s", table)
		}
		b.must("topology", "declare") // declare compares all arguments
	}
}
