package examples

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/doc"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/program"
)

// example is an example that go test does not run, since it has no output.
type example struct {
	file string // from the root of the module
	name string // as go/doc has it: the part after "Example"
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
		case entry.IsDir():
			if _, err := fs.Stat(root, path+"/go.mod"); err == nil && path != "." {
				return fs.SkipDir // a module of its own, whose tests compile its examples
			}
			return nil
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

// shown is one example of the program that contains all of them.
type shown struct {
	program string
	file    string
	source  string
}

// drivers maps a call that opens a database to the package that the example must then import.
var drivers = map[string]string{
	`sql.Open("pgx"`: "github.com/jackc/pgx/v5/stdlib", `sqlx.Open("pgx"`: "github.com/jackc/pgx/v5/stdlib",
	`sql.Open("sqlserver"`: "github.com/microsoft/go-mssqldb",
}

// build builds one program of all examples, since linking takes longest. The program's arguments
// are the example's file and a map from the addresses in the example to the real ones.
func build(t *testing.T, all []example) map[string]shown {
	t.Helper()
	folder := t.TempDir()
	binary := filepath.Join(folder, "examples")
	here, err := filepath.Abs("program") // the compiler takes it for a folder of the module, whose imports it can use
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	write := func(name, source string) {
		t.Helper()
		files[filepath.Join(here, name)] = filepath.Join(folder, name)
		if err := os.WriteFile(filepath.Join(folder, name), []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	built := make(map[string]shown)
	var table strings.Builder
	for i, e := range all {
		if e.play == nil {
			t.Fatalf("%s: go/doc cannot make a program of it: let it be the only example of the file", e.file)
		}
		var text bytes.Buffer
		if err := format.Node(&text, fset, e.play); err != nil {
			t.Fatal(err)
		}
		source := text.String()
		for open, driver := range drivers {
			if strings.Contains(source, open) && !strings.Contains(source, strconv.Quote(driver)) {
				t.Errorf("%s does not import %s", e.file, driver)
			}
		}
		built[e.file] = shown{binary, e.file, source}
		source = strings.Replace(source, "\nfunc main() {", fmt.Sprintf("\nfunc example%d() {", i), 1)
		write(fmt.Sprintf("example%d.go", i), address.ReplaceAllString(source, "address($0)"))
		fmt.Fprintf(&table, "\t%q: example%d,\n", e.file, i)
	}
	write("main.go", `package main

import (
	"encoding/json"
	"os"
)

func address(shown string) string {
	var ours map[string]string
	if err := json.Unmarshal([]byte(os.Args[2]), &ours); err != nil {
		panic(err)
	}
	return ours[shown]
}

func main() {
	map[string]func(){
`+table.String()+`	}[os.Args[1]]()
}
`)
	overlay, err := json.Marshal(map[string]any{"Replace": files})
	if err != nil {
		t.Fatal(err)
	}
	overlayFile := filepath.Join(folder, "overlay.json")
	if err := os.WriteFile(overlayFile, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", binary, "-overlay", overlayFile, "./program")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // halves the time of linking
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the examples' program: %v\n%s", err, output)
	}
	return built
}

// address matches the address of a server.
var address = regexp.MustCompile(`"([a-z]+://[^"]*)?localhost[^"]*"`)

// start starts an example with other addresses than the ones it shows.
func (e shown) start(t *testing.T, addresses map[string]string) *program.Process {
	t.Helper()
	for shown := range addresses {
		if n := strings.Count(e.source, strconv.Quote(shown)); n != 1 {
			t.Fatalf("%s shows the address %s %d times, must be once", e.file, shown, n)
		}
	}
	if n := len(address.FindAllString(e.source, -1)); n != len(addresses) {
		t.Fatalf("%s shows %d addresses, must be %d", e.file, n, len(addresses))
	}
	text, err := json.Marshal(addresses)
	if err != nil {
		t.Fatal(err)
	}
	return program.StartCmd(t, exec.Command(e.program, e.file, string(text)))
}

// runs runs an example to its end.
func (e shown) runs(t *testing.T, addresses map[string]string) {
	t.Helper()
	endsWell(t, e.start(t, addresses).Await())
}

func endsWell(t *testing.T, code int) {
	t.Helper()
	if code != 0 {
		t.Fatalf("the example ends with %d", code)
	}
}
