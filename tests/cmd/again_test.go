package cmd_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/program"
)

// ./tests/run and ./tests/matrix run a failed package once more. A package that passes then is
// named. A second failure, or a failure outside any package, fails the run.
func TestAFailedPackageRunsOnceMoreAndIsNamed(t *testing.T) {
	const passes, failsOnce, fails = "", `if os.WriteFile(os.Getenv("SEEN"), nil, 0o600); first { t.Fatal("at first") }`, `t.Fatal("always")`
	for name, c := range map[string]struct {
		body        string
		packages    string
		green       bool
		runs, flaky int
	}{
		"fails once": {body: failsOnce, packages: "./...", green: true, runs: 2, flaky: 1},
		"fails":      {body: fails, packages: "./...", runs: 2},
		"no package": {body: passes, packages: "./missing"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			for file, text := range map[string]string{
				"go.mod": "module again\n\ngo 1.26\n",
				"a_test.go": "package again\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nfunc TestIt(t *testing.T) {\n" +
					"\t_, err := os.Stat(os.Getenv(\"SEEN\"))\n\tfirst := err != nil\n\t_ = first\n\tt.Log(\"it ran\")\n\t" + c.body + "\n}\n",
			} {
				must(t, os.WriteFile(filepath.Join(folder, file), []byte(text), 0o600))
			}
			script := `set -euo pipefail; source ../install.sh; source ../again.sh
failed=; test_once "$OUT/main" "$FOLDER" "$PACKAGES" -v -count=1; try_again "$OUT" || failed=yes; name_flaky "$OUT"; [[ ! $failed ]]`
			cmd := exec.Command("bash", "-c", "exec 2>&1; "+script)
			cmd.Env = append(os.Environ(), "OUT="+t.TempDir(), "FOLDER="+folder, "PACKAGES="+c.packages, "SEEN="+filepath.Join(folder, "seen"))
			r := program.RunCmd(t, cmd)
			if (r.Code == 0) != c.green || strings.Count(r.Stdout, "it ran") != c.runs || strings.Count(r.Stdout, "FLAKY ****  again") != c.flaky {
				t.Errorf("it ended with %d, must be green: %v, must have run %d times and name %d flaky package:\n%s", r.Code, c.green, c.runs, c.flaky, r.Stdout)
			}
		})
	}
}
