package main

const helpHead = `Usage: verifier [-migrate | -health]

Forwards the messages of committed transactions from the staging queue to their
targets, and drops the messages of rolled-back ones. Runs until SIGTERM or
SIGINT, then drains: committed messages are forwarded, other messages are
requeued. Any number of verifiers may work on one staging queue.

  -migrate  create the ledger's tables, or bring them to this release's version,
            and exit; the login needs the right to create tables; wait up
            to two minutes for a database that is not up yet
  -health   ask the running verifier with the same variables whether it is
            ready, and exit with 0 if it is
  -help     print this
  -version  print the build's release, revision and Go version

The configuration is the environment. Variables that start with BRIDGE_ and are
not listed here are an error, except those of bridgectl and of the tests
(BRIDGE_MANAGEMENT_..., BRIDGE_INBOX_..., BRIDGE_TEST_...).

`

const helpTail = `
The URLs choose TLS. With these parameters the server must have a certificate
for the URL's host, signed by an authority in the first FILE; leave the first
parameter out for the system's authorities. The others name the verifier's own
certificate and key, for a server that asks for them. All files are in PEM.

  amqps://      cacertfile=FILE certfile=FILE keyfile=FILE
  postgres://   sslmode=verify-full sslrootcert=FILE sslcert=FILE sslkey=FILE
  mysql://      ssl-ca=FILE ssl-cert=FILE ssl-key=FILE, or tls=true
  sqlserver://  certificate=FILE; encrypt=disable goes without TLS, and
                encrypt=false encrypts the login alone, for any certificate
  azuresql://   as sqlserver://

Traces are exported by OTLP over HTTP if OTEL_EXPORTER_OTLP_ENDPOINT, or
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, is set or OTEL_TRACES_EXPORTER is otlp, and
OTEL_SDK_DISABLED is not true; OpenTelemetry's other variables count too, such
as OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER and OTEL_EXPORTER_OTLP_HEADERS.

None of the three addresses has a login. The status page shows the database's
statements with their values: leave it on 127.0.0.1, or put a proxy with a login
before it. A URL that allows a connection to another machine without TLS or with
an unverified certificate is refused, unless BRIDGE_INSECURE=true; then the log
names it at the start.

Exit codes:
  0  stopped by a signal, and drained; or -migrate, -health or -help is done
  1  with -health: not ready; with -migrate: interrupted
  2  a flag or a variable is wrong
  3  stopped by a signal, but not drained in BRIDGE_DRAIN: nothing is lost;
     messages that were forwarded without their ack arrive twice
  4  the database is away, refuses the login, or fails
  5  the broker is away, refuses the login or a queue, or has a queue with other
     properties
  6  the ledger's tables are missing or of another version: verifier -migrate
  7  the database cannot be trusted: it does not make lookups wait, is a
     standby, or is not always the same database
With each code except 0, one line on standard error gives the fix. Codes 4 to 7
mean that the verifier could not start. After its start it retries until it is
stopped.
`
