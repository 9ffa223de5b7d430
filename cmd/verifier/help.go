package main

import (
	"io"
	"strings"
)

const helpHead = `Usage: verifier [-migrate]

Forwards the messages of committed transactions from the staging queue to their
targets, and drops those of rolled-back ones. Runs until SIGTERM or SIGINT, then
drains: what has been judged is forwarded, the rest is handed back. Any number
of verifiers may work on one staging queue.

  -migrate  create the ledger's tables, or bring them to this release's version,
            and exit; the login needs the right to create tables
  -help     print this

The configuration is the environment. Variables that start with BRIDGE_ and are
not listed here are an error, except BRIDGE_TEST_..., which the tests use.

`

const helpVariables = `{{range .}}{{usage_key .}}{{with usage_default .}} (default {{.}}){{end}}
{{usage_description .}}
{{end}}`

const helpTail = `
Exit codes:
  0  stopped by a signal, and drained; or -migrate or -help is done
  1  could not start, or -migrate failed: one line on standard error says why
  2  a flag or a variable is wrong: one line on standard error says which
`

func help(stdout, stderr io.Writer) int {
	var variables strings.Builder
	if err := usage(&variables, helpVariables); err != nil {
		return fail(stderr, exitFailed, err)
	}
	var text strings.Builder
	text.WriteString(helpHead)
	for line := range strings.Lines(variables.String()) {
		if strings.HasPrefix(line, prefix+"_") {
			text.WriteString("  " + line)
			continue
		}
		wrap(&text, line, "      ")
	}
	text.WriteString(helpTail)
	_, _ = io.WriteString(stdout, text.String())
	return exitDone
}

// wrap writes text in lines of at most 80 characters.
func wrap(w *strings.Builder, text, indent string) {
	const width = 80
	line := indent
	for _, word := range strings.Fields(text) {
		if len(line)+1+len(word) > width {
			w.WriteString(line + "\n")
			line = indent
		}
		if line != indent {
			line += " "
		}
		line += word
	}
	w.WriteString(line + "\n")
}
