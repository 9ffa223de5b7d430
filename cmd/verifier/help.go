package main

import (
	"io"
	"strings"

	"github.com/twoqueue/twoqueue/cmd/internal/environment"
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

const helpTail = `
TLS is chosen by the URLs. With these parameters the server must have a
certificate for the URL's host, signed by an authority in FILE; leave that
parameter out for the system's authorities. The others are the certificate and
the key that the server may ask of the verifier. All files are in PEM.

  amqps://      cacertfile=FILE certfile=FILE keyfile=FILE
  postgres://   sslmode=verify-full sslrootcert=FILE sslcert=FILE sslkey=FILE
  mysql://      ssl-ca=FILE ssl-cert=FILE ssl-key=FILE, or tls=true
  sqlserver://  encrypt=true certificate=FILE
  azuresql://   nothing; it is always so

Exit codes:
  0  stopped by a signal, and drained; or -migrate or -help is done
  1  could not start, or -migrate failed: one line on standard error says why
  2  a flag or a variable is wrong: one line on standard error says which
`

func help(stdout, stderr io.Writer) int {
	var text strings.Builder
	text.WriteString(helpHead)
	if err := environment.Help(&text, prefix, new(config)); err != nil {
		return fail(stderr, exitFailed, err)
	}
	text.WriteString(helpTail)
	_, _ = io.WriteString(stdout, text.String())
	return exitDone
}
