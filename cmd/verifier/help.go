package main

const helpHead = `Usage: verifier [-migrate | -health]

Forwards the messages of committed transactions from the staging queue to their
targets, and drops those of rolled-back ones. Runs until SIGTERM or SIGINT, then
drains: what has been judged is forwarded, the rest is handed back. Any number
of verifiers may work on one staging queue.

  -migrate  create the ledger's tables, or bring them to this release's version,
            and exit; the login needs the right to create tables; a database
            that is not there yet is waited for, for two minutes at most
  -health   ask the verifier that runs here with the same variables whether it
            is ready, and exit: 0 if it is
  -help     print this
  -version  print of which release, revision and Go this build is

The configuration is the environment. Variables that start with BRIDGE_ and are
not listed here are an error, except those of bridgectl and of the tests
(BRIDGE_MANAGEMENT_..., BRIDGE_INBOX_..., BRIDGE_TEST_...).

`

const helpTail = `
TLS is chosen by the URLs. With these parameters the server must have a
certificate for the URL's host, signed by an authority in FILE; leave that
parameter out for the system's authorities. The others are the certificate and
the key that the server may ask of the verifier. All files are in PEM.

  amqps://      cacertfile=FILE certfile=FILE keyfile=FILE
  postgres://   sslmode=verify-full sslrootcert=FILE sslcert=FILE sslkey=FILE
  mysql://      ssl-ca=FILE ssl-cert=FILE ssl-key=FILE, or tls=true
  sqlserver://  certificate=FILE; encrypt=false allows a connection without TLS
  azuresql://   as sqlserver://

Traces are exported by OTLP over HTTP if OTEL_EXPORTER_OTLP_ENDPOINT, or
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, is set or OTEL_TRACES_EXPORTER is otlp, and
OTEL_SDK_DISABLED is not true; OpenTelemetry's other variables count too, such
as OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER and OTEL_EXPORTER_OTLP_HEADERS.

None of the three addresses has a login. The status page shows the database's
statements with what stands in them: leave it on 127.0.0.1, or put a proxy with
a login before it. A URL that lets the connection to another machine be without
TLS, or with a certificate that is not verified, is refused unless
BRIDGE_INSECURE=true allows it; then the log names it at the start.

Exit codes:
  0  stopped by a signal, and drained; or -migrate, -health or -help is done
  1  with -health: not ready; with -migrate: interrupted
  2  a flag or a variable is wrong
  3  stopped by a signal, but not drained in BRIDGE_DRAIN: nothing is lost, and
     what had been forwarded without its ack comes twice
  4  the database is away, refuses the login, or fails
  5  the broker is away, refuses the login or a queue, or has a queue with other
     properties
  6  the ledger's tables are missing or of another version: verifier -migrate
  7  the database is not to be trusted: it does not make lookups wait, is a
     standby, or is not always the same one
Each but 0 comes with one line on standard error that says what to do. With 4 to
7 it could not start; once it has started, it tries again until it is stopped.
`
