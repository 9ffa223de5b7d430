package cmd_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

var pictures = flag.String("pictures", "", "a folder for pictures of the status page")

const script = `<script>document.title = "owned"</script><img src=x onerror="document.title='owned'">`

// bustle is a worker with a status page, on which there is something of everything:
// traffic, an open transaction, a full target, a held order key, dead letters, drops. Names in it try
// to be markup.
func bustle(t *testing.T) (p *process, finish func()) {
	t.Helper()
	s := stage.On(t, stage.Postgres, servertest.Vhost(t), bridge.Topology{Queue: "staging", OrderedShards: 1})
	target := s.Queue("emails", nil)
	full := s.Queue("reports", amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	p = verify(t, s, "BRIDGE_STATUS_ADDR=127.0.0.1:0", "BRIDGE_UNROUTABLE=1ms", "BRIDGE_PATIENCE=1h", "BRIDGE_ORDERED_SHARDS=1", "BRIDGE_ALLOW=:emails,:reports,:<*")
	tx, ids := s.Begin(stage.To(target, "waits"), stage.To("orders.eu.invoice.created", "waits too"))
	if _, err := tx.ExecContext(t.Context(), "SET LOCAL application_name = 'nightly <b>report</b> of checkout-service-7d9c5b6f4-x2x8q'"); err != nil {
		t.Fatal(err)
	}
	s.Commit(stage.To(full, "first"))
	s.WaitDepth(full, 1)
	s.Commit(stage.To(full, "second"), stage.To(full, "third"))
	for range 3 {
		inOrder := stage.To(full, "in order")
		inOrder.OrderKey = "customer <b>7</b>"
		s.Commit(inOrder)
	}
	for range 98 {
		if err := s.Channel.PublishWithContext(t.Context(), "", s.Topology.Queue, false, false, amqp.Publishing{Body: []byte("malformed")}); err != nil {
			t.Fatal(err)
		}
	}
	s.WaitDepth(s.Topology.DeadQueue(), 98)
	s.Commit(stage.To(script, "unroutable"))
	s.Commit(stage.To("elsewhere", "not allowed"))
	for range 3 {
		s.RollBack(stage.To(target, "rolled back"), stage.To(target, "rolled back"))
		for range 20 {
			s.Commit(stage.To(target, "through"))
		}
	}
	s.WaitDepth(target, 60)
	s.WaitDepth(s.Topology.DeadQueue(), 100)
	_ = ids
	return p, func() {
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
		s.WaitDepth(target, 61)
	}
}

// tooWide names the tables that are wider than their boxes, and the page if it is wider
// than its window.
const tooWide = `[document.documentElement, ...document.querySelectorAll('.table')]
	.filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.id || e.localName).join(' ')`

// brokenWords are the words in tables that stand on more than one line. A word is of
// letters and digits. One of more than 40 may be broken.
const brokenWords = `[...document.querySelectorAll('th, td')].flatMap((cell) => {
	const broken = [], texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
	for (let text; (text = texts.nextNode());) {
		for (const word of text.data.matchAll(/[\p{L}\p{N}]+/gu)) {
			if (word[0].length > 40) continue;
			const range = document.createRange();
			range.setStart(text, word.index);
			range.setEnd(text, word.index + word[0].length);
			if (new Set([...range.getClientRects()].map((r) => r.top)).size > 1) broken.push(word[0]);
		}
	}
	return broken;
}).join(' ')`

func TestStatusPage(t *testing.T) {
	t.Parallel()
	b := browse(t)
	p, finish := bustle(t)
	address := p.where("status page")
	b.look("light", 1280)
	b.open("http://" + address + "/")
	for _, there := range []string{
		`document.getElementById('phase').textContent === 'running'`,
		`document.querySelector('.card.forwarded .small').textContent === '61 in all'`,
		`document.querySelector('.card.dropped .small').textContent === '6 in all'`,
		`document.querySelector('.card.dead_lettered .small').textContent === '100 in all'`,
		`document.querySelector('.card.waiting .big').textContent === '2'`,
		`document.querySelectorAll('#oldest tbody tr').length === 2`,
		`document.querySelector('#targets tbody').textContent.includes('reports')`,
		`document.querySelector('#keys tbody').textContent.includes('customer <b>7</b>')`,
		`document.querySelector('#keys tbody td.number').textContent === '2'`,
		`document.querySelectorAll('#dead tbody tr').length === 20`,
		`document.querySelectorAll('#dropped tbody tr').length === 6`,
		`document.getElementById('reasons').textContent === 'malformed98not-allowed1unroutable1'`,
		`document.querySelector('#transactions tbody').textContent.includes('nightly <b>report</b>')`, // as text
		`document.querySelector('#dead tbody').textContent.includes('<script>')`,
	} {
		b.until(there)
	}
	if title := b.eval("document.title"); title != "Verifier staging" {
		t.Errorf("title %q", title)
	}
	if n := b.eval("document.querySelectorAll('script, img, b').length"); n != 1.0 { // the page's own
		t.Errorf("%v elements that came from a message", n)
	}
	if complaints := b.complaints(); len(complaints) > 0 {
		t.Errorf("on the console: %v", complaints)
	}
	t.Run("in dark and light, wide and narrow", func(t *testing.T) {
		background := map[string]any{}
		for _, scheme := range []string{"light", "dark"} {
			for _, width := range []int{390, 800, 1100, 1600} {
				b.look(scheme, width)
				b.until(fmt.Sprint("window.innerWidth === ", width))
				b.shoot(fmt.Sprint(scheme, "-", width))
				if wide := b.eval(tooWide); wide != "" {
					t.Errorf("%s, %d pixels: wider than what they are in: %v", scheme, width, wide)
				}
				if broken := b.eval(brokenWords); width > 390 && broken != "" {
					t.Errorf("%s, %d pixels: broken inside: %v", scheme, width, broken)
				}
			}
			background[scheme] = b.eval("getComputedStyle(document.body).backgroundColor")
		}
		if background["dark"] == background["light"] {
			t.Error("dark is as light")
		}
	})
	t.Run("without a mouse", func(t *testing.T) {
		b.look("light", 1280)
		b.eval("document.activeElement.blur()")
		var order []any
		for range 3 {
			b.press("Tab", 9, "")
			order = append(order, b.eval("document.activeElement.id || document.activeElement.textContent"))
		}
		if order[0] != "Skip to the content" || order[1] != "pause" || order[2] != "status.json" {
			t.Errorf("focus goes %v", order)
		}
		b.eval("document.getElementById('pause').focus()")
		b.press("Enter", 13, "\r")
		b.until("document.getElementById('pause').getAttribute('aria-pressed') === 'true'")
		b.until("document.getElementById('fresh').textContent.startsWith('paused')")
		b.press("Enter", 13, "\r")
		b.until("document.getElementById('fresh').textContent === 'up to date'")
	})
	finish()
	b.until(`document.getElementById('oldest').textContent === 'No message waits.'`) // by itself
	b.until(`!document.querySelector('#transactions tbody') || !document.querySelector('#transactions tbody').textContent.includes('nightly')`)
	p.Stop()
	b.until(`!document.getElementById('stale').hidden`)
	b.look("dark", 1280)
	b.shoot("stale")
}

// What a browser is told to hold against, and whom the page answers to.
func TestStatusPageIsClosed(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.SQLite)
	p := verify(t, s, "BRIDGE_STATUS_ADDR=127.0.0.1:0")
	address := "http://" + p.where("status page")
	for _, c := range []struct {
		method, path, host string
		want               int
	}{
		{"GET", "/", "", 200}, {"HEAD", "/", "", 200}, {"GET", "/status.js", "", 200}, {"GET", "/status.css", "", 200}, {"GET", "/status.json", "", 200},
		{"GET", "/", "localhost:8082", 200}, {"GET", "/status.json", "[::1]", 200},
		{"GET", "/status.json", "attacker.example", 403}, {"GET", "/", "127.0.0.1.attacker.example:80", 403},
		{"POST", "/", "", 405}, {"DELETE", "/status.json", "", 405}, {"GET", "/nothing", "", 404}, {"GET", "/metrics", "", 404}, {"GET", "/debug/pprof/", "", 404},
	} {
		request, err := http.NewRequestWithContext(t.Context(), c.method, address+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Close = true
		request.Host = c.host
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != c.want {
			t.Errorf("%s %s as %q: %d, want %d", c.method, c.path, c.host, response.StatusCode, c.want)
		}
		policy := response.Header.Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none'; ") || strings.Contains(policy, "unsafe") || response.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s: headers %v", c.method, c.path, response.Header)
		}
	}
	_, text := get(t, address+"/status.json")
	var report map[string]any
	if err := json.Unmarshal([]byte(text), &report); err != nil || report["state"] != "running" || report["queue"] != s.Topology.Queue {
		t.Errorf("report %s: %v", text, err)
	}
	if off := verify(t, s); strings.Contains(off.Stderr.String(), "status page") || strings.Contains(off.Stderr.String(), "profiles") {
		t.Error("the page or the profiles are there unasked")
	}
}
