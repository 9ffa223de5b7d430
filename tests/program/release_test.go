//go:build release

package program

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// buildPatience bounds a program that compiles much.
const buildPatience = 15 * time.Minute

// ran runs a program in a folder, and returns its output.
func ran(t *testing.T, folder string, env []string, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), buildPatience, fmt.Errorf("%s does not end", name))
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = folder, append(os.Environ(), env...), time.Minute
	output, err := cmd.CombinedOutput()
	return string(output), errors.Join(err, context.Cause(ctx))
}

// must runs a program that cannot fail, in a folder, and returns its output.
func must(t *testing.T, folder, name string, args ...string) string {
	t.Helper()
	output, err := ran(t, folder, nil, name, args...)
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, output)
	}
	return strings.TrimSpace(output)
}

// tagged copies the sources of a release, including uncommitted changes, into a repository with one
// tagged commit.
func tagged(t *testing.T, tag string) (folder, revision string) {
	t.Helper()
	// Git must not read the account's settings.
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	folder = filepath.Join(t.TempDir(), "checkout")
	must(t, ".", "mkdir", folder)
	must(t, "../..", "cp", "-R", "bridge", "sender", "verifier", "idempotency", "cmd", "compose", ".github",
		"go.mod", "go.sum", "LICENSE", ".gitignore", folder)
	must(t, folder, "git", "init", "-q")
	must(t, folder, "git", "add", "-A")
	must(t, folder, "git", "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-q", "-m", "x")
	must(t, folder, "git", "tag", tag)
	return folder, must(t, folder, "git", "rev-parse", "HEAD")
}

// contents returns a folder's files.
func contents(t *testing.T, folder string) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string][]byte)
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[entry.Name()] = content
	}
	return files
}

// The release is only for this machine's platform, and has no images.
func TestAReleaseMadeTwiceIsTheSameAndNamesItsVersion(t *testing.T) {
	const tag = "v0.9.8"
	first, revision := tagged(t, tag)
	release := func(checkout, version, to string, env ...string) (string, error) {
		return ran(t, checkout, append([]string{"PLATFORMS=" + runtime.GOARCH, "BUILDX_BUILDER=no-such-builder"}, env...),
			"bash", "-c", `umask "${MASK:-022}" && exec ./compose/release "$@"`, "release", version, to)
	}
	output, err := release(first, tag, "../out")
	if err != nil || !strings.Contains(output, "left out: the images") {
		t.Fatalf("%v: %s", err, output)
	}
	files := contents(t, filepath.Join(first, "../out"))

	// The second release has another folder, other account settings and other flags. It has
	// docker's own builder, which writes no archives.
	docker := t.TempDir()
	if err := os.WriteFile(filepath.Join(docker, "docker"), []byte("#!/bin/sh\necho 'Driver: docker'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	second := filepath.Join(t.TempDir(), "another", "folder")
	must(t, ".", "git", "clone", "-q", first, second)
	if output, err := release(second, tag, "../out", "MASK=077", "TZ=Asia/Tokyo", "GOFLAGS=-tags=other", "PATH="+docker+":"+os.Getenv("PATH"), "GOARCH=s390x", "GOAMD64=v3", "GOARM64=v9.0"); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	again := contents(t, filepath.Join(second, "../out"))
	for name, content := range files {
		if !bytes.Equal(content, again[name]) {
			t.Errorf("%s is not the same: %d bytes and %d", name, len(content), len(again[name]))
		}
	}

	platform := "_" + tag + "_linux_" + runtime.GOARCH
	archive := "twoqueue" + platform + ".tar.gz"
	commands := []string{"bridgectl", "email-gateway", "verifier"}
	want := map[string]bool{archive: true, "SHA256SUMS": true}
	for _, command := range commands {
		want[command+platform+".cdx.json"] = true
		components(t, files[command+platform+".cdx.json"], tag, first)
	}
	if len(files) != len(want) {
		t.Errorf("there are %v", slices.Sorted(maps.Keys(files)))
	}
	var sums strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !want[name] {
			t.Errorf("%s is there", name)
		}
		if name != "SHA256SUMS" {
			fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(files[name]), name)
		}
	}
	if got := string(files["SHA256SUMS"]); got != sums.String() {
		t.Errorf("checksums\n%s\nand not\n%s", got, sums.String())
	}

	dockerfile, err := os.ReadFile("../../compose/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	goVersion := regexp.MustCompile(`(?m)^ARG GO_VERSION=(.*)$`).FindSubmatch(dockerfile)
	if goVersion == nil {
		t.Fatal("the Dockerfile names no version of Go")
	}
	unpacked := t.TempDir()
	must(t, first, "tar", "-xzf", filepath.Join("../out", archive), "-C", unpacked)
	for _, command := range commands {
		path := filepath.Join(unpacked, "twoqueue"+platform, command)
		binary, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if libraries, err := binary.ImportedLibraries(); err != nil || len(libraries) > 0 {
			t.Errorf("%s needs %v: %v", command, libraries, err)
		}
		_ = binary.Close()
		want := fmt.Sprintf("%s %s, revision %s, go%s", command, tag, revision, goVersion[1])
		if got := must(t, ".", path, "-version"); got != want {
			t.Errorf("-version says %q and not %q", got, want)
		}
	}

	// compose/release refuses these, each in one line.
	refused := func(what, version, to, sentence string) {
		t.Helper()
		if output, err := release(first, version, to); err == nil || strings.Count(output, "\n") != 1 || !strings.Contains(output, sentence) {
			t.Errorf("%s: %v: %s", what, err, output)
		}
	}
	refused("a folder that is there", tag, "../out", "is there already")
	refused("a version that is none", "v0.9.7", "../none", "v0.9.7 is not the commit that is checked out")
	if err := os.WriteFile(filepath.Join(first, "go.mod"), []byte("module changed\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	refused("a changed checkout", tag, "../none", "files that are not in the commit")
	if _, err := os.Stat(filepath.Join(first, "../none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a refused release leaves its folder: %v", err)
	}
}

// components checks a list of modules: it must have one module in the checkout's version, and no
// data that changes with every release.
func components(t *testing.T, list []byte, tag, checkout string) {
	t.Helper()
	const client = "github.com/rabbitmq/amqp091-go"
	text := string(list)
	for _, want := range []string{`"CycloneDX"`, `"` + tag + `"`, "pkg:golang/" + client + "@" + must(t, checkout, "go", "list", "-m", "-f", "{{.Version}}", client), "goarch=" + runtime.GOARCH + "&goos=linux"} {
		if !strings.Contains(strings.ReplaceAll(text, `\u0026`, "&"), want) {
			t.Errorf("the list of modules has no %s: %.300s", want, text)
		}
	}
	if strings.Contains(text, `"serialNumber"`) || strings.Contains(text, `"timestamp"`) {
		t.Errorf("the list of modules differs each time: %.300s", text)
	}
}
