package cmd_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

func TestReadmeHasTheExamples(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	must(t, err)
	for file, part := range map[string]string{
		"readme_pgx_test.go":                      `(?s)\n// README begin\n\n(.*)\n\n// README end\n`,
		"../orm/readme_gorm_test.go":              `(?s)\n// README begin\n\n(.*)\n\n// README end\n`,
		"../../idempotency/example_reply_test.go": `(?s)\n(// serve .*)\n$`,
		"../receiver/service/main.go":             `(?s)\n(func bill\(.*?\n})\n`,
	} {
		source, err := os.ReadFile(file)
		must(t, err)
		example := regexp.MustCompile(part).FindStringSubmatch(string(source))
		if example == nil || !strings.Contains(string(readme), "\n"+example[1]+"\n```\n") {
			t.Errorf("README.md does not have this part of %s:\n%s", file, example)
		}
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

// The example runs beside a verifier.
func TestThePgxExampleOfTheReadmeSendsAndReceivesOnce(t *testing.T) {
	t.Parallel()
	s := stage.On(t, stage.Postgres, servertest.Vhost(t), bridge.Topology{Queue: "twoqueue"})
	must(t, migrate.Inbox(t.Context(), s.DB, migrate.PostgreSQL))
	if _, err := s.DB.ExecContext(t.Context(), `CREATE TABLE orders (name text PRIMARY KEY); CREATE TABLE emails (body text)`); err != nil {
		t.Fatal(err)
	}
	dedup, place, receive := pgxExample(t, s)
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
