package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/cmd/internal/database"
)

// outcome runs the program with these variables; none of its servers answers.
func outcome(t *testing.T, env map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	for name, value := range env {
		t.Setenv(name, value)
	}
	var out, errs bytes.Buffer
	code = run(context.Background(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestHelpListsTheVariables(t *testing.T) {
	code, stdout, stderr := outcome(t, nil, "-help")
	if code != exitDone || stderr != "" {
		t.Fatalf("exit code %d, stderr %q", code, stderr)
	}
	for _, name := range []string{"SHOP_DATABASE_URL_FILE", "SHOP_AMQP_URL", "SHOP_EVERY (default 1s)", "SHOP_ROLL_BACK", "SHOP_LOG_FORMAT"} {
		if !strings.Contains(stdout, "\n  "+name) {
			t.Errorf("%s is not listed", name)
		}
	}
}

func TestWhatIsWrongIsOneLineThatNamesIt(t *testing.T) {
	good := map[string]string{"SHOP_DATABASE_URL": "sqlite:/nowhere/shop.db", "SHOP_AMQP_URL": "amqp://u:s3cret@127.0.0.1:1/"}
	for _, c := range []struct {
		name, value string
		args        []string
		code        int
		want        string
	}{
		{"SHOP_DATABASE_URL", "", nil, exitMisused, "SHOP_DATABASE_URL: is not set"},
		{"SHOP_AMQP_URL", "", nil, exitMisused, "SHOP_AMQP_URL: is not set"},
		{"SHOP_AMQP_URL_FILE", "/nowhere", nil, exitMisused, "SHOP_AMQP_URL_FILE: is set, and SHOP_AMQP_URL too"},
		{"SHOP_EVRY", "1s", nil, exitMisused, "SHOP_EVRY: unknown variable; did you mean SHOP_EVERY?"},
		{"SHOP_SLOW", "0", nil, exitMisused, "SHOP_SLOW: "},
		{"SHOP_EVERY", "1s", []string{"-sell"}, exitMisused, "flag provided but not defined: -sell; see shop -help"},
		{"SHOP_EVERY", "1s", []string{"sell"}, exitMisused, `argument "sell" is not understood`},
		{"SHOP_EVERY", "1s", nil, exitFailed, "SHOP_DATABASE_URL: open database: database not reachable"},
		{"SHOP_DATABASE_URL", "oracle://u:s3cret@h/d", nil, exitMisused, "SHOP_DATABASE_URL: open database: not a database URL"},
	} {
		t.Run(c.want, func(t *testing.T) {
			for name, value := range good {
				t.Setenv(name, value)
			}
			code, stdout, stderr := outcome(t, map[string]string{c.name: c.value}, c.args...)
			if code != c.code || stdout != "" || !strings.HasPrefix(stderr, "shop: "+c.want) ||
				strings.Count(stderr, "\n") != 1 || strings.Contains(stderr, "s3cret") {
				t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
			}
		})
	}
}

// An example migrates at its start; it says so.
func TestItSaysThatItMakesItsTable(t *testing.T) {
	url := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	db, err := database.Create(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	code, _, stderr := outcome(t, map[string]string{"SHOP_DATABASE_URL": url, "SHOP_AMQP_URL": "amqp://u:p@127.0.0.1:1/"})
	if code != exitFailed || !strings.Contains(stderr, "migrated the shop's own table") || !strings.Contains(stderr, "verifier -migrate") {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	if _, err := db.ExecContext(t.Context(), "SELECT id FROM orders"); err != nil {
		t.Error(err)
	}
}
