package cmd_test

import (
	"fmt"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

const script = `<script>document.title = "owned"</script><img src=x onerror="document.title='owned'">`

// tooWide lists the tables that are wider than their boxes, and the page if it is wider than its
// window.
const tooWide = `[document.documentElement, ...document.querySelectorAll('.table')]
	.filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.id || e.localName).join(' ')`

// brokenWords lists the words in tables that are broken across lines. A word consists of letters
// and digits; one of more than 40 characters may be broken.
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

// A verifier has something of everything: traffic, an open transaction, a full target, a held
// order key, dead letters, drops. Some names contain markup. The page must show all of it as
// text, refresh itself, fit every width, and say when its data is old.
func TestStatusPage(t *testing.T) {
	t.Parallel()
	s := stage.On(t, stage.Postgres, servertest.Vhost(t), bridge.Topology{Queue: "staging", OrderedShards: 1})
	target := s.Queue("emails", nil)
	full := s.Queue("reports", amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	p := verify(t, s, "BRIDGE_STATUS_ADDR=127.0.0.1:0", "BRIDGE_UNROUTABLE=1ms", "BRIDGE_PATIENCE=1h", "BRIDGE_ORDERED_SHARDS=1", "BRIDGE_ALLOW=:emails,:reports,:<*")
	tx, _ := s.Begin(stage.To(target, "waits"), stage.To("orders.eu.invoice.created", "waits too"))
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
		must(t, s.Channel.PublishWithContext(t.Context(), "", s.Topology.Queue, false, false, amqp.Publishing{Body: []byte("malformed")}))
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

	b := browse(t, "http://"+p.Where("status page")+"/")
	for _, there := range []string{
		`document.getElementById('phase').textContent === 'running'`,
		`document.querySelector('.card.forwarded .small').textContent === '61 in all'`,
		`document.querySelector('.card.dropped .small').textContent === '6 in all'`,
		`document.querySelector('.card.dead_lettered .small').textContent === '100 in all'`,
		`document.querySelector('.card.waiting .big').textContent === '2'`,
		`document.querySelectorAll('#oldest tbody tr').length === 2`,
		`document.querySelector('#targets tbody').textContent.includes('reports')`,
		`document.querySelector('#targets tbody').textContent.includes('consume the queue faster')`,
		`document.getElementById('state').className === 'state troubled'`,
		`document.getElementById('phase-text').textContent.includes('1 target is unavailable')`,
		`document.querySelector('#keys tbody').textContent.includes('customer <b>7</b>')`,
		`document.querySelector('#keys tbody td.number').textContent === '2'`,
		`document.querySelectorAll('#dead tbody tr').length === 20`,
		`document.querySelectorAll('#dropped tbody tr').length === 6`,
		`document.getElementById('reasons').textContent === 'malformed98not-allowed1unroutable1'`,
		`document.querySelector('#transactions tbody').textContent.includes('nightly <b>report</b>')`, // as text
		`document.querySelector('#dead tbody').textContent.includes('<script>')`,
		`document.title === 'Verifier staging'`,
		`document.querySelectorAll('script, img, b').length === 1`, // only the page's own
	} {
		b.until(there)
	}
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int{390, 800, 1100, 1600} {
			b.look(scheme, width)
			b.until(fmt.Sprint("window.innerWidth === ", width))
			b.until(tooWide + " === ''")
			if width > 390 {
				b.until(brokenWords + " === ''")
			}
		}
	}
	if err := tx.Commit(); err != nil {
		t.Error(err)
	}
	b.until(`document.getElementById('oldest').textContent === 'No message waits.'`) // the page has refreshed itself
	p.Stop()
	b.until(`!document.getElementById('stale').hidden`)
}
