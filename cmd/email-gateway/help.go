package main

const helpHead = `Usage: email-gateway [-health]
       email-gateway migrate
       email-gateway schema
       email-gateway doubtful list [-o json]
       email-gateway doubtful sent ID
       email-gateway doubtful retry ID

Sends the e-mails of a queue through a mail server, each once at most. Runs
until SIGTERM or SIGINT, then drains: what is being sent is finished, the rest
is handed back. Any number of gateways may work on one queue.

  migrate         create the tables, or bring them to this release's version; a
                  database that is not there yet is waited for, for two
                  minutes at most
  schema          print the JSON Schema of a message's body
  doubtful list   list the e-mails of which nobody knows whether they were sent,
                  as the mail server did not answer or the gateway died, and
                  those that failed after a retry
  doubtful sent   say that it was sent, or shall not be: nothing more is done
  doubtful retry  say that it was not sent: a running gateway sends it
  -health         ask the gateway that runs here with the same variables whether
                  it is ready, and exit: 0 if it is
  -help           print this
  -version        print of which release, revision and Go this build is

The configuration is the environment. Variables that start with EMAIL_ and are
not listed here are an error.

`

const helpTail = `
Exit codes:
  0  stopped by a signal, and drained; or the subcommand is done
  1  could not start, or the subcommand failed or was interrupted, or with
     -health: not ready; one line on standard error
  2  an argument or a variable is wrong: one line on standard error says which
  3  stopped by a signal, but not drained in EMAIL_DRAIN: see doubtful list
`
