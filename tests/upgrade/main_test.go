// Package upgrade_test runs two releases side by side on the same tables: this one, and a next
// one, which is this one with one more version of its tables.
package upgrade_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestMain(m *testing.M) { program.Main(m) }

// next holds the next release's migrations, by part and database: changes that a release may make
// (see package migrate).
var next = map[string]map[string]string{
	"ledger": {
		"postgres": "ALTER TABLE bridge_ledger ADD COLUMN note text;\nCREATE TABLE bridge_next (id integer PRIMARY KEY);",
		"mysql":    "ALTER TABLE bridge_ledger ADD COLUMN note VARCHAR(10) NULL;\nCREATE TABLE bridge_next (id INT PRIMARY KEY);",
	},
	"inbox": {
		"postgres": "ALTER TABLE bridge_inbox ADD COLUMN note text;",
		"mysql":    "ALTER TABLE bridge_inbox ADD COLUMN note VARCHAR(10) NULL;",
	},
}

// nextOverlay returns an overlay with the source of the next release.
func nextOverlay(t *testing.T) string {
	t.Helper()
	const root, versions = "../..", "bridge/internal/portable/portable.go"
	source, err := os.ReadFile(filepath.Join(root, versions))
	must(t, err)
	texts := make(map[string]string) // by file
	for part, migrations := range next {
		constant := regexp.MustCompile(`(` + part + `Version\s*= )(\d+)`)
		found := constant.FindSubmatch(source)
		if found == nil {
			t.Fatalf("%s has no version of the %s", versions, part)
		}
		version, err := strconv.Atoi(string(found[2]))
		must(t, err)
		source = constant.ReplaceAll(source, fmt.Appendf(nil, "${1}%d", version+1))
		for dialect, statements := range migrations {
			path := fmt.Sprintf("bridge/migrate/sql/%s/%s/%05d_next.sql", dialect, part, version+1)
			texts[path] = "-- +goose Up\n" + statements + "\n"
		}
	}
	texts[versions] = string(source)
	return servertest.Overlay(t, root, texts)
}

// nextRelease builds the next release's commands, and returns their folder.
func nextRelease(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	const commands = "github.com/twoqueue/twoqueue/cmd/"
	servertest.Go(t, "build", "-overlay", nextOverlay(t), "-o", folder+"/", commands+"verifier", commands+"shop", commands+"bridgectl")
	return folder
}
