// Package upgrade_test runs two releases side by side on the same tables: this one, and
// the next one, which is this one with one more version of its tables.
package upgrade_test

import (
	"encoding/json"
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

// The migrations of the next release, by database: what it may add (see package migrate).
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

// nextOverlay describes, for go build -overlay, the source of the next release.
func nextOverlay(folder string) (string, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	replace := make(map[string]string)
	add := func(path, text string) error {
		file := filepath.Join(folder, strconv.Itoa(len(replace))+filepath.Ext(path))
		replace[filepath.Join(root, path)] = file
		return os.WriteFile(file, []byte(text), 0o600)
	}
	const versions = "bridge/internal/tables/tables.go"
	source, err := os.ReadFile(filepath.Join(root, versions))
	if err != nil {
		return "", err
	}
	for part, migrations := range next {
		constant := regexp.MustCompile(`(` + part + `Version\s*= )(\d+)`)
		found := constant.FindSubmatch(source)
		if found == nil {
			return "", fmt.Errorf("%s has no version of the %s", versions, part)
		}
		version, err := strconv.Atoi(string(found[2]))
		if err != nil {
			return "", err
		}
		source = constant.ReplaceAll(source, fmt.Appendf(nil, "${1}%d", version+1))
		for dialect, statements := range migrations {
			path := fmt.Sprintf("bridge/migrate/sql/%s/%s/%05d_next.sql", dialect, part, version+1)
			if err := add(path, "-- +goose Up\n"+statements+"\n"); err != nil {
				return "", err
			}
		}
	}
	if err := add(versions, string(source)); err != nil {
		return "", err
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(folder, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o600)
}

// nextRelease builds the next release's commands, and returns their folder.
func nextRelease(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	overlay, err := nextOverlay(folder)
	must(t, err)
	const commands = "github.com/twoqueue/twoqueue/cmd/"
	servertest.Go(t, "build", "-overlay", overlay, "-o", folder+"/", commands+"verifier", commands+"shop", commands+"bridgectl")
	return folder
}
