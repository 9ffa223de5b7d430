package compose

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/twoqueue/twoqueue/tests/program"
)

const folder = "../../compose"

func TestMain(m *testing.M) { program.Main(m) }

// read returns a file of the folder compose.
func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(folder + "/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// installed returns the path of one of Prometheus' programs.
func installed(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
	case errors.Is(err, exec.ErrNotFound) && os.Getenv("CI") != "true":
		t.Skipf("%s is not installed: apt-get install prometheus, or run ./tests/run, which does", name)
	default:
		t.Fatal(err)
	}
	return path
}
