package compose

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

const (
	root   = "../.." // of the checkout
	folder = root + "/compose"

	// patience only ends a test that fails: the machines are shared and slow.
	patience = 3 * time.Minute
)

// scratch is a folder for what the tests of this run share.
var scratch string

func TestMain(m *testing.M) { os.Exit(withScratch(func() int { return servertest.Run(m) })) }

func withScratch(run func() int) int {
	dir, err := os.MkdirTemp("", "twoqueue-compose-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	scratch = dir
	return run()
}

// read returns a file of the folder compose.
func read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

var images struct {
	once   sync.Once
	folder string
	err    error
}

// binaries is the folder with what the images' builder makes, made once.
func binaries(t *testing.T) string {
	t.Helper()
	images.once.Do(func() { images.folder, images.err = build() })
	if images.err != nil {
		t.Fatal(images.err)
	}
	return images.folder
}

var variable = regexp.MustCompile(`(?m)^  ([A-Z]+_[A-Z0-9_]+)(?: |$)`)

// variables are those that a command knows, by its help.
func variables(t *testing.T, command string) map[string]bool {
	t.Helper()
	help, err := exec.Command(filepath.Join(binaries(t), command), "--help").Output()
	if err != nil {
		t.Fatalf("%s --help: %v", command, err)
	}
	known := make(map[string]bool)
	for _, match := range variable.FindAllSubmatch(help, -1) {
		known[string(match[1])] = true
	}
	if len(known) < 5 {
		t.Fatalf("%s --help lists only %v", command, known)
	}
	return known
}

// get asks for a page.
func get(t *testing.T, address string) (code int, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Close = true // no goroutine is left over
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	var content bytes.Buffer
	if _, err := content.ReadFrom(response.Body); err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, content.String()
}

func write(t *testing.T, path string, content []byte) string {
	t.Helper()
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
