package walkthrough

import (
	"bufio"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A step is a command and what it shall print.
type step struct {
	command string
	output  []string // lines, in which … stands for anything
}

// steps reads the console blocks of a text.
func steps(text string) (all []step) {
	inside := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```console"
		case !inside:
		case strings.HasPrefix(line, "$ "):
			all = append(all, step{command: line[2:]})
		case len(all) > 0 && strings.HasSuffix(all[len(all)-1].command, `\`) && len(all[len(all)-1].output) == 0:
			all[len(all)-1].command += "\n" + line
		case len(all) > 0:
			last := &all[len(all)-1]
			last.output = append(last.output, line)
		}
	}
	return all
}

// shows tells whether an output has the lines that are shown, in their order. A line
// that is just … stands for any number of lines.
func (s step) shows(output string) bool {
	var pattern strings.Builder
	pattern.WriteString(`^`)
	for _, line := range s.output {
		if strings.TrimSpace(line) == "…" {
			pattern.WriteString(`(?:[^\n]*\n)*?`)
			continue
		}
		var words []string
		for _, word := range strings.Fields(line) {
			words = append(words, strings.ReplaceAll(regexp.QuoteMeta(word), "…", `[^\n]*?`))
		}
		pattern.WriteString(`[ \t]*` + strings.Join(words, `[ \t]+`) + `[ \t]*\n`)
	}
	pattern.WriteString(`$`)
	return regexp.MustCompile(pattern.String()).MatchString(output)
}

// A shell is one session of bash, in which what is exported and started stays.
type shell struct {
	cmd   *exec.Cmd
	in    *bufio.Writer
	lines chan string
}

const mark = "@@@ "

func startShell(t *testing.T, folder string, env []string) *shell {
	t.Helper()
	cmd := exec.Command("bash", "--norc", "--noprofile")
	cmd.Dir, cmd.Env = folder, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &shell{cmd: cmd, in: bufio.NewWriter(in), lines: make(chan string, 10_000)}
	go func() {
		defer close(s.lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			s.lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		_ = in.Close()
		ended := make(chan struct{})
		go func() { _ = cmd.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Error("what was started in the walk-through does not end")
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what bash has left behind
		for range s.lines {
		}
	})
	return s
}

// run types a command and returns what it prints, with its exit code.
func (s *shell) run(command string) (output string, code int, err error) {
	fmt.Fprintf(s.in, "%s\necho \"\n%s$?\"\n", command, mark)
	if err := s.in.Flush(); err != nil {
		return "", 0, err
	}
	var out strings.Builder
	timeout := time.After(patience)
	for {
		select {
		case line, ok := <-s.lines:
			if !ok {
				return out.String(), 0, errors.New("the shell has ended")
			}
			if rest, ok := strings.CutPrefix(line, mark); ok {
				_, err := fmt.Sscan(rest, &code)
				output = strings.TrimRight(out.String(), "\n")
				if output != "" {
					output += "\n"
				}
				return output, code, err
			}
			out.WriteString(line + "\n")
		case <-timeout:
			return out.String(), 0, errors.New("it does not end")
		}
	}
}
