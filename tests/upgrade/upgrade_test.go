package upgrade_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// databases are the databases on which programs of two releases can work at once.
var databases = []struct {
	stage.Database
	inbox func(ctx context.Context, db *sql.DB) (driver.Inbox, error)
}{
	{stage.Postgres, func(ctx context.Context, db *sql.DB) (driver.Inbox, error) { return postgres.OpenInbox(ctx, db) }},
	{stage.MariaDB, func(ctx context.Context, db *sql.DB) (driver.Inbox, error) { return mysql.OpenInbox(ctx, db) }},
}

// world has programs of both releases on one database and one broker. The stage's own ledger is
// of this release, as the test binary is.
type world struct {
	*stage.Stage
	t      *testing.T
	env    []string
	next   string // folder of the next release's commands
	target string
}

type release bool

const (
	older release = false
	newer release = true
)

// command returns a command of one of the releases.
func (w *world) command(r release, name string, args ...string) *exec.Cmd {
	w.t.Helper()
	cmd := program.Command(w.t, name, append(slices.Clone(w.env), args...)...)
	if r == newer {
		cmd.Path = filepath.Join(w.next, name)
	}
	return cmd
}

func (w *world) must(r release, name string, args ...string) string {
	w.t.Helper()
	result := program.RunCmd(w.t, w.command(r, name, args...))
	if result.Code != 0 {
		w.t.Fatalf("%s %v ends with %d: %s%s", name, args, result.Code, result.Stdout, result.Stderr)
	}
	return result.Stdout
}

// start starts a program and waits until it works.
func (w *world) start(r release, name, works string) *program.Process {
	w.t.Helper()
	p := program.StartCmd(w.t, w.command(r, name))
	p.Hear(works)
	return p
}

func (w *world) verifier(r release) *program.Process {
	w.t.Helper()
	return w.start(r, "verifier", "session started")
}

func (w *world) shop(r release) *program.Process {
	w.t.Helper()
	w.must(r, "shop", "-migrate")
	return w.start(r, "shop", "the shop is open")
}

func (w *world) stop(p *program.Process) {
	w.t.Helper()
	if code := p.Stop(); code != 0 {
		w.t.Fatalf("%s ends with %d", p, code)
	}
}

// flows waits until more messages have arrived.
func (w *world) flows(when string) {
	w.t.Helper()
	const more = 30
	before := w.Depth(w.target)
	w.Eventually("messages arrive "+when, func() bool { return w.Depth(w.target) >= before+more })
}

// versions returns the versions of the ledger's and the inbox's tables.
func (w *world) versions() (ledger, inbox int) {
	w.t.Helper()
	for part, version := range map[string]*int{"ledger": &ledger, "inbox": &inbox} {
		must(w.t, w.DB.QueryRowContext(w.t.Context(), "SELECT max(version_id) FROM bridge_"+part+"_version").Scan(version))
	}
	return ledger, inbox
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The next release migrates the tables while a sender and a verifier of this release work. These
// go on, can be restarted, and are replaced one by one. Each committed order's message must
// arrive, and no other.
func TestAnUpgradeStopsNothing(t *testing.T) {
	t.Parallel()
	folder := nextRelease(t)
	for _, d := range databases {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, d.Database)
			address := program.DatabaseURL(t, s.DatabaseURL)
			w := &world{Stage: s, t: t, next: folder, target: s.Queue("emails", nil), env: []string{
				"BRIDGE_DATABASE_URL=" + address, "BRIDGE_AMQP_URL=" + s.AMQP, "BRIDGE_QUEUE=" + s.Topology.Queue, "BRIDGE_ALLOW=*:*",
				"BRIDGE_HTTP_ADDR=127.0.0.1:0", "BRIDGE_DRAIN=2m", "BRIDGE_CONFIRM_TIMEOUT=2m", "BRIDGE_LOG_FORMAT=text",
				"SHOP_DATABASE_URL=" + address, "SHOP_AMQP_URL=" + s.AMQP, "SHOP_QUEUE=" + s.Topology.Queue, "SHOP_EMAILS=emails",
				"SHOP_EVERY=25ms", "SHOP_ROLL_BACK=5", "SHOP_SLOW=7", "SHOP_HOLD=200ms", "SHOP_LOG_FORMAT=text",
			}}
			w.must(older, "bridgectl", "migrate", "up", "--ledger", "--inbox")
			ledger, inbox := w.versions()
			refused := program.RunCmd(t, w.command(newer, "verifier"))
			if refused.Code != 6 || !strings.Contains(refused.Stderr, "verifier -migrate") {
				t.Errorf("the newer verifier ends with %d on the older tables, must end with 6 and name verifier -migrate: %s", refused.Code, refused.Stderr)
			}
			verifier, shop := w.verifier(older), w.shop(older)
			w.flows("before the upgrade")

			w.must(newer, "bridgectl", "migrate", "up", "--ledger", "--inbox")
			if l, i := w.versions(); l != ledger+1 || i != inbox+1 {
				t.Fatalf("the tables are of versions %d and %d, must be %d and %d", l, i, ledger+1, inbox+1)
			}
			w.flows("on the newer tables, by the older programs")
			w.stop(verifier)
			w.stop(shop)
			w.must(older, "verifier", "-migrate")
			verifier, shop = w.verifier(older), w.shop(older)
			w.flows("after the older programs have started again")
			if l, i := w.versions(); l != ledger+1 || i != inbox+1 {
				t.Fatalf("the tables are of versions %d and %d, must still be %d and %d", l, i, ledger+1, inbox+1)
			}
			if status := w.must(older, "bridgectl", "migrate", "status", "--ledger", "--inbox"); strings.Count(status, "newer") != 2 {
				t.Errorf("migrate status of the older release does not say newer:\n%s", status)
			}

			newVerifier := w.verifier(newer)
			w.flows("with both verifiers")
			w.stop(verifier)
			w.flows("from the older sender by the newer verifier")
			newShop := w.shop(newer)
			w.flows("from both senders")
			w.stop(shop)
			w.flows("by the newer programs")
			w.stop(newShop)
			w.Eventually("nothing waits for its verdict", func() bool { return w.Rows() == 0 })
			w.stop(newVerifier)
			// Messages that the shop rolled back at its end have no row, and may still be staged.
			w.Finish(t, func(n int) {
				v := w.verifier(newer)
				w.Evidence()
				w.Eventually("it is judged", func() bool {
					return judged(t, v) > n // the evidence, too
				})
				w.stop(v)
			})

			w.judge(d.inbox)
		})
	}
}

// judged returns the number of messages that a verifier has judged.
func judged(t *testing.T, v *program.Process) (all int) {
	t.Helper()
	_, text := v.Endpoint("/metrics")
	for _, verdict := range []string{"forwarded", "dropped"} {
		_, value, _ := strings.Cut(text, "\ntwoqueue_messages_total{verdict=\""+verdict+"\"} ")
		var n int
		if _, err := fmt.Sscan(value, &n); err != nil {
			t.Fatalf("no count of messages that are %s: %v", verdict, err)
		}
		all += n
	}
	return all
}

// judge compares the committed orders with the messages that have arrived. It receives these
// through the inbox of this release.
func (w *world) judge(open func(context.Context, *sql.DB) (driver.Inbox, error)) {
	w.t.Helper()
	w.WantNothingLeft(w.t)
	received, err := open(w.t.Context(), w.DB)
	must(w.t, err)
	arrived, err := w.Take(w.target)
	must(w.t, err)
	committed, copies := make(map[uuid.UUID]bool), make(map[uuid.UUID]int)
	for _, id := range w.IDs(w.t, "SELECT id FROM orders") {
		committed[id] = true
	}
	twice := 0
	for _, d := range arrived {
		tx, err := w.DB.BeginTx(w.t.Context(), nil)
		must(w.t, err)
		first, err := received.Claim(w.t.Context(), bridge.SQL(tx), "customer", []string{d.MessageId})
		must(w.t, err)
		must(w.t, tx.Commit())
		if len(first) == 0 {
			twice++
			continue
		}
		var email struct{ Text string }
		must(w.t, json.Unmarshal(d.Body, &email))
		id, err := uuid.Parse(strings.TrimSuffix(strings.TrimPrefix(email.Text, "Thank you for order "), "."))
		must(w.t, err)
		copies[id]++
	}
	w.t.Logf("%d orders were placed, %d messages have come", len(committed), len(arrived))
	stage.Compare(w.t, committed, copies)
	if twice > 0 { // no confirm was late, and every program was stopped in good order
		w.t.Errorf("%d messages have come twice", twice)
	}
}
