package compose

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

const dockerfile = folder + "/Dockerfile"

// stages reads the Dockerfile as the builder does, whose complaints are errors.
func stages() ([]instructions.Stage, error) {
	content, err := os.ReadFile(dockerfile)
	if err != nil {
		return nil, err
	}
	parsed, err := parser.Parse(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	var complaints []error
	for _, warning := range parsed.Warnings {
		complaints = append(complaints, errors.New(warning.Short))
	}
	lint := linter.New(&linter.Config{Warn: func(rule, description, _, text string, at []parser.Range) {
		complaints = append(complaints, fmt.Errorf("%s: %s: %s %v", rule, description, text, at))
	}})
	all, _, err := instructions.Parse(parsed.AST, lint)
	return all, errors.Join(append(complaints, err)...)
}

// build does by hand what the stage of that name does: the files that the ignore file lets
// through, and the command that builds. It returns the folder with the binaries.
func build() (string, error) {
	all, err := stages()
	if err != nil {
		return "", fmt.Errorf("read Dockerfile: %w", err)
	}
	source, out := filepath.Join(scratch, "src"), filepath.Join(scratch, "out")
	if err := copyContext(source); err != nil {
		return "", fmt.Errorf("copy build context: %w", err)
	}
	for _, name := range []string{".git", "README.md", "compose", "tests", "cmd/verifier/config_test.go"} {
		if _, err := os.Stat(filepath.Join(source, name)); !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("the builder is sent %s: %v", name, err)
		}
	}
	for _, command := range stage(all, "build").Commands {
		run, ok := command.(*instructions.RunCommand)
		if !ok || len(run.CmdLine) != 1 || !strings.Contains(run.CmdLine[0], "go build") {
			continue
		}
		cmd := exec.Command("/bin/sh", "-c", strings.ReplaceAll(run.CmdLine[0], "/out/$TARGETARCH/", out+"/"))
		cmd.Dir, cmd.Env = source, append(os.Environ(), "TARGETARCH="+runtime.GOARCH, "REVISION="+revision)
		if output, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w: %s", run.CmdLine[0], err, output)
		}
		return out, nil
	}
	return "", errors.New("the Dockerfile's stage build has no go build")
}

// stage is the one of that name, empty if there is none.
func stage(all []instructions.Stage, name string) instructions.Stage {
	i, found := instructions.HasStage(all, name)
	if !found {
		return instructions.Stage{}
	}
	return all[i]
}

// revision is what the images are told to be built of.
const revision = "0123456789012345678901234567890123456789"

func TestTheImagesKnowTheirRevision(t *testing.T) {
	for _, name := range []string{"bridgectl", "shop", "email-gateway", "verifier"} {
		output, err := exec.Command(filepath.Join(binaries(t), name), "-version").Output()
		if err != nil || !strings.Contains(string(output), ", revision "+revision+", go") {
			t.Errorf("%s -version: %v: %s", name, err, output)
		}
	}
}

// copyContext copies what a builder is sent.
func copyContext(to string) error {
	file, err := os.Open(filepath.Join(root, ".dockerignore"))
	if err != nil {
		return err
	}
	defer file.Close()
	patterns, err := ignorefile.ReadAll(file)
	if err != nil {
		return err
	}
	matcher, err := patternmatcher.New(patterns)
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil || name == "." {
			return err
		}
		if name == ".git" && entry.IsDir() { // in a worktree it is a file
			return fs.SkipDir // many files; no pattern brings one of them back
		}
		ignored, err := matcher.MatchesOrParentMatches(name)
		if err != nil || ignored || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		return os.WriteFile(target, content, 0o644)
	})
}

// An image has one static binary that the builder has made, and no root.
func TestEachImageIsAStaticBinaryForAnAccountThatIsNotRoot(t *testing.T) {
	all, err := stages()
	if err != nil {
		t.Fatal(err)
	}
	var final []string
	for _, stage := range all {
		if stage.BaseName != "base" {
			continue
		}
		final = append(final, stage.Name)
		binary, entry := "", ""
		for _, command := range stage.Commands {
			switch command := command.(type) {
			case *instructions.CopyCommand:
				binary = filepath.Base(command.SourcePaths[0])
				if command.From != "build" || command.SourcePaths[0] != "/out/$TARGETARCH/"+binary || command.DestPath != "/"+binary {
					t.Errorf("%s: %v", stage.Name, command)
				}
			case *instructions.EntrypointCommand:
				entry = strings.Join(command.CmdLine, " ")
				if command.PrependShell {
					t.Errorf("%s needs a shell, and there is none", stage.Name)
				}
			}
		}
		if entry != "/"+binary || binary != stage.Name {
			t.Errorf("%s has the binary %q and starts %q", stage.Name, binary, entry)
		}
		output, err := exec.Command("go", "version", "-m", filepath.Join(binaries(t), binary)).CombinedOutput()
		if err != nil || !strings.Contains(string(output), "CGO_ENABLED=0") {
			t.Errorf("%s is not built without cgo: %v", binary, err)
		}
	}
	if want := []string{"bridgectl", "shop", "email-gateway", "verifier"}; !slices.Equal(final, want) {
		t.Errorf("images %v, not %v", final, want)
	}
	base := stage(all, "base")
	if base.BaseName != "scratch" {
		t.Errorf("the stage base is from %q", base.BaseName)
	}
	// Go compiles for other platforms by itself: nothing is emulated.
	if compiler := stage(all, stage(all, "build").BaseName); compiler.Platform != "$BUILDPLATFORM" {
		t.Errorf("the compiler is for %q", compiler.Platform)
	}
	user := ""
	for _, command := range base.Commands {
		if u, ok := command.(*instructions.UserCommand); ok {
			user = u.User
		}
	}
	if !regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`).MatchString(user) {
		t.Errorf("user %q: a number is needed, so that Kubernetes can tell that it is not root", user)
	}
}

// must is for what cannot go wrong once its test has come so far.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// The builder is the version of Go that the module asks for, or a later one.
func TestTheBuilderIsNewEnough(t *testing.T) {
	var go1, minor, wantMinor int
	version := regexp.MustCompile(`(?m)^ARG GO_VERSION=(\S+)$`).FindSubmatch(must(os.ReadFile(dockerfile)))
	wanted := regexp.MustCompile(`(?m)^go 1\.(\d+)`).FindSubmatch(must(os.ReadFile(filepath.Join(root, "go.mod"))))
	if version == nil || wanted == nil {
		t.Fatal("no version is named")
	}
	fmt.Sscanf(string(version[1]), "%d.%d", &go1, &minor)
	fmt.Sscan(string(wanted[1]), &wantMinor)
	if go1 != 1 || minor < wantMinor {
		t.Errorf("the builder is Go %s, the module needs 1.%d", version[1], wantMinor)
	}
}
