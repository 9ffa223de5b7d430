package examples

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/doc"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/program"
)

// An example is one that go test does not run, as it has no output.
type example struct {
	file string // from the root of the module
	name string // as go/doc has it: what follows "Example"
	play *ast.File
}

var fset = token.NewFileSet()

// documented lists the examples of all packages that go test does not run.
func documented(t *testing.T) []example {
	t.Helper()
	root := os.DirFS("../..")
	var found []example
	err := fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (path == "tests" || path == "cmd" || strings.HasPrefix(entry.Name(), ".") && path != "."):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(fset, path, text, parser.ParseComments)
		if err != nil {
			return err
		}
		for _, e := range doc.Examples(file) {
			if e.Output == "" && !e.EmptyOutput {
				found = append(found, example{path, e.Name, e.Play})
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// find returns the example of a file.
func find(t *testing.T, file string) example {
	t.Helper()
	all := documented(t)
	i := slices.IndexFunc(all, func(e example) bool { return e.file == file })
	if i < 0 {
		t.Fatalf("%s has no example without output", file)
	}
	return all[i]
}

// build makes the program of an example, with other addresses than those it shows.
func (e example) build(t *testing.T, addresses map[string]string) string {
	t.Helper()
	if e.play == nil {
		t.Fatalf("%s: go/doc cannot make a program of it: let it be the only example of the file", e.file)
	}
	var text bytes.Buffer
	if err := format.Node(&text, fset, e.play); err != nil {
		t.Fatal(err)
	}
	source := text.String()
	for shown, ours := range addresses {
		if n := strings.Count(source, strconv.Quote(shown)); n != 1 {
			t.Fatalf("%s shows the address %s %d times, must be once", e.file, shown, n)
		}
		source = strings.Replace(source, strconv.Quote(shown), strconv.Quote(ours), 1)
	}
	folder := t.TempDir()
	sourceFile := filepath.Join(folder, "main.go")
	// To the compiler it stands in a folder of the module, which is where its imports are.
	here, err := filepath.Abs("program/main.go")
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{here: sourceFile}})
	if err != nil {
		t.Fatal(err)
	}
	overlayFile := filepath.Join(folder, "overlay.json")
	for path, content := range map[string]string{sourceFile: source, overlayFile: string(overlay)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	binary := filepath.Join(folder, strings.TrimSuffix(filepath.Base(e.file), "_test.go"))
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", binary, "-overlay", overlayFile, "./program")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // to link takes half the time then
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the program of %s: %v\n%s\n%s", e.file, err, output, source)
	}
	return binary
}

// start starts an example's program.
func start(t *testing.T, file string, addresses map[string]string) *program.Process {
	t.Helper()
	return program.StartCmd(t, exec.Command(find(t, file).build(t, addresses)))
}

// runs runs an example's program to its end.
func runs(t *testing.T, file string, addresses map[string]string) {
	t.Helper()
	endsWell(t, start(t, file, addresses).Await())
}

func endsWell(t *testing.T, code int) {
	t.Helper()
	if code != 0 {
		t.Fatalf("the example ends with %d", code)
	}
}
