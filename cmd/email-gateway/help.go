package main

const helpHead = `Usage: email-gateway [-health]
       email-gateway migrate
       email-gateway schema
       email-gateway doubtful list [-o json]
       email-gateway doubtful sent ID
       email-gateway doubtful retry ID

Sends the e-mails of a queue through a mail server, each once at most. Runs
until SIGTERM or SIGINT, then drains: e-mails that are being sent are
finished, other messages are requeued. Any number of gateways may work on one
queue.

  migrate         create the tables, or bring them to this release's version;
                  wait up to two minutes for a database that is not up yet
  schema          print the JSON Schema of a message's body
  doubtful list   list e-mails that may have been sent (the mail server did not
                  answer, or the gateway died), and e-mails that failed
                  after a retry
  doubtful sent   mark an e-mail as sent, or as not to be sent
  doubtful retry  mark an e-mail as not sent: a running gateway sends it
  -health         ask the running gateway with the same variables whether it is
                  ready, and exit with 0 if it is
  -help           print this
  -version        print the build's release, revision and Go version

The configuration is the environment. Variables that start with EMAIL_ and are
not listed here are an error.

`

const helpTail = `
Exit codes:
  0  stopped by a signal, and drained; or the subcommand is done
  1  could not start, or the subcommand failed or was interrupted, or with
     -health: not ready; one line on standard error
  2  an argument or a variable is wrong: one line on standard error names it
  3  stopped by a signal, but not drained in EMAIL_DRAIN: see doubtful list
`
