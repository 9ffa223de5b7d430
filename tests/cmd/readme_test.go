package cmd_test

import (
	"context"
	"database/sql"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// The text between the marks must be in the README too.

// README begin

// The shop: the message goes out if and only if the transaction commits.
func placeOrder(ctx context.Context, db *sql.DB, s *sender.Sender, order string) error {
	return s.InTx(ctx, db, nil, func(tx *sender.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders VALUES ($1)`, order); err != nil {
			return err // rolls back
		}
		_, err := tx.Send(bridge.Message{RoutingKey: "emails", Publishing: amqp.Publishing{Body: []byte(order)}})
		return err
	})
}

// The receiver's queue, retry queues in which a message that fails holds up no other, and a dead
// queue.
func openMailer(ctx context.Context, db *sql.DB, broker *bridge.Broker) (*idempotency.Deduplicator, error) {
	inbox, err := postgres.OpenInbox(ctx, db)
	if err != nil {
		return nil, err
	}
	queues, err := idempotency.DeclareReceiver(ctx, broker, "emails", nil)
	if err != nil {
		return nil, err
	}
	return idempotency.New(inbox, "mailer", &idempotency.Options{Queues: queues})
}

// The receiver: a message that is delivered twice is handled once. It handles ten messages at a
// time, reconnects, and lets each attempt that has begun finish when ctx ends.
func sendEmails(ctx context.Context, db *sql.DB, broker *bridge.Broker, dedup *idempotency.Deduplicator) error {
	consumer, err := idempotency.NewConsumer(broker, "emails", func(ctx context.Context, d amqp.Delivery) error {
		return dedup.Handle(ctx, db, d, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO emails VALUES ($1)`, d.Body)
			return err
		})
	}, &idempotency.ConsumerOptions{Workers: 10})
	if err != nil {
		return err
	}
	return consumer.Run(ctx)
}

// README end

func TestReadmeHasTheExamples(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	must(t, err)
	for _, name := range []string{"readme_test.go", "readme_pgx_test.go", "../orm/readme_gorm_test.go"} {
		source, err := os.ReadFile(name)
		must(t, err)
		_, example, _ := strings.Cut(string(source), "\n// README begin\n")
		example, _, _ = strings.Cut(example, "\n// README end\n")
		if want := "```go\n" + strings.TrimSpace(example) + "\n```\n"; !strings.Contains(string(readme), want) {
			t.Errorf("README.md does not have this block of %s:\n%s", name, want)
		}
	}
	service, err := os.ReadFile("../receiver/service/main.go")
	must(t, err)
	_, bill, _ := strings.Cut(string(service), "\nfunc bill(")
	bill, _, _ = strings.Cut(bill, "\n}\n")
	if want := "```go\nfunc bill(" + bill + "\n}\n```\n"; !strings.Contains(string(readme), want) {
		t.Errorf("README.md does not have the handler of tests/receiver/service:\n%s", want)
	}
}

// Every test that a page names exists.
func TestThePagesNameExistingTests(t *testing.T) {
	var sources strings.Builder
	must(t, filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		sources.Write(source)
		return err
	}))
	var found int
	for page, text := range pages(t) {
		for _, name := range regexp.MustCompile("`(Test[A-Za-z0-9]+)[`/]").FindAllStringSubmatch(text, -1) {
			found++
			if !strings.Contains(sources.String(), "\nfunc "+name[1]+"(") {
				t.Errorf("%s: there is no %s", page, name[1])
			}
		}
	}
	if found == 0 {
		t.Error("the pages name no tests")
	}
}

func sqlExample(t *testing.T, s *stage.Stage) (dedup *idempotency.Deduplicator, place func(order string) error, receive func(context.Context) error) {
	t.Helper()
	ctx := t.Context()
	dedup, err := openMailer(ctx, s.DB, s.Broker)
	must(t, err)
	sender, err := sender.New(s.Ledger, s.Broker, nil)
	must(t, err)
	return dedup, func(order string) error { return placeOrder(ctx, s.DB, sender, order) },
		func(ctx context.Context) error { return sendEmails(ctx, s.DB, s.Broker, dedup) }
}

// The examples run beside a verifier.
func TestTheExamplesOfTheReadmeSendAndReceiveOnce(t *testing.T) {
	t.Parallel()
	for name, example := range map[string]func(*testing.T, *stage.Stage) (*idempotency.Deduplicator, func(string) error, func(context.Context) error){
		"database/sql": sqlExample, "pgx": pgxExample,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := stage.On(t, stage.Postgres, servertest.Vhost(t), bridge.Topology{Queue: "twoqueue"})
			must(t, migrate.Inbox(t.Context(), s.DB, migrate.PostgreSQL))
			if _, err := s.DB.ExecContext(t.Context(), `CREATE TABLE orders (name text PRIMARY KEY); CREATE TABLE emails (body text)`); err != nil {
				t.Fatal(err)
			}
			dedup, place, receive := example(t, s)
			p := verify(t, s)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			ended := make(chan error, 1)
			go func() { ended <- receive(ctx) }()
			for _, order := range []string{"apples", "pears"} {
				if err := place(order); err != nil {
					t.Error(err)
				}
			}
			if err := place("apples"); err == nil {
				t.Error("the same order twice: no error")
			}
			s.Eventually("two e-mails are sent", func() bool {
				var n int
				err := s.DB.QueryRowContext(t.Context(), `SELECT count(*) FROM emails WHERE body IN ('apples', 'pears')`).Scan(&n)
				return err == nil && n == 2
			})
			p.Stop()
			stop()
			must(t, servertest.Next(t, "the receiver has ended", ended))
			if stats := dedup.Stats(); stats.Handled != 2 {
				t.Errorf("%+v", stats)
			}
		})
	}
}

// Every link from a page to another file or heading has a target.
func TestTheLinksOfThePagesLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#]*)(#[^)]*)?\)`)
	var found int
	pages := pages(t)
	for page, text := range pages {
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			target, heading := match[1], match[2]
			if strings.Contains(target, "://") {
				continue
			}
			found++
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: %v", page, err)
			}
			if heading != "" && !slices.Contains(headings(pages[file]), heading) {
				t.Errorf("%s: %s has no %s", page, file, heading)
			}
		}
	}
	if found == 0 {
		t.Error("the pages have no links")
	}
}

// pages returns the text of every Markdown file, by path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	pages := make(map[string]string)
	err := filepath.WalkDir("../..", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(file) != ".md" {
			return err
		}
		text, err := os.ReadFile(file)
		pages[file] = string(text)
		return err
	})
	must(t, err)
	return pages
}

// headings returns the anchors that GitHub makes of a text's headings.
func headings(text string) (anchors []string) {
	for _, match := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		anchor := strings.ReplaceAll(strings.ToLower(match[1]), " ", "-")
		anchors = append(anchors, "#"+regexp.MustCompile(`[^\p{L}\p{N}_-]`).ReplaceAllString(anchor, ""))
	}
	return anchors
}
