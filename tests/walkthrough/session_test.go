package walkthrough

import (
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/twoqueue/twoqueue/tests/program"
)

// step is a command with the output that it must have.
type step struct {
	command string
	output  []string // lines, in which … stands for any text
}

// steps returns the steps in the console blocks of a text.
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

// shows reports whether an output has the step's lines, in their order. A line with only … stands
// for any number of lines.
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

// shell is one session of bash: exported variables and started programs persist.
type shell struct {
	*program.Process
	in   io.Writer
	read int // length of the output that belongs to earlier commands
}

func startShell(t *testing.T, folder string, env []string) *shell {
	t.Helper()
	cmd := exec.Command("bash", "--norc", "--noprofile")
	cmd.Dir, cmd.Env = folder, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	s := &shell{Process: program.StartCmd(t, cmd), in: in}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) // also the programs that were started in it
		s.Await()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	})
	s.run(t, "exec 2>&1")
	return s
}

// ended matches the end of a command's output: the exit code after a mark.
var ended = regexp.MustCompile(`\n@@@ (\d+)\n`)

// run types a command and returns its output and its exit code.
func (s *shell) run(t *testing.T, command string) (output string, code int) {
	t.Helper()
	if _, err := fmt.Fprintf(s.in, "%s\necho \"\n@@@ $?\"\n", command); err != nil {
		t.Fatal(err)
	}
	all := s.Read(&s.Stdout, "that it is done with "+command, func(said string) bool { return ended.MatchString(said[s.read:]) })
	at := ended.FindStringSubmatchIndex(all[s.read:])
	output = strings.TrimRight(all[s.read:s.read+at[0]], "\n")
	if output != "" {
		output += "\n"
	}
	code, err := strconv.Atoi(all[s.read+at[2] : s.read+at[3]])
	if err != nil {
		t.Fatal(err)
	}
	s.read += at[1]
	return output, code
}
