package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// RabbitMQAddress is the address of a RabbitMQ, with all that its users need, even in another
// process. It cannot end the server.
type RabbitMQAddress struct {
	Port           int
	ManagementPort int // used only with the plugin rabbitmq_management
	PrometheusPort int // used only with the plugin rabbitmq_prometheus
	TLS            bool

	// The node, for Ctl and Eval.
	Node     string
	EpmdPort int
	Folder   string
}

// PostgresAddress is the address of a PostgreSQL, or of a pool in front of it.
type PostgresAddress struct{ Port int }

// MariaDBAddress is the address of a MariaDB, or of a MySQL.
type MariaDBAddress struct{ Port int }

// local returns the address of a port on this machine. All servers listen only there.
func local(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// Addr returns the host and port at which the server listens. It stays the same over a
// restart.
func (r RabbitMQAddress) Addr() string { return local(r.Port) }

// URL returns the AMQP address of the default vhost.
func (r RabbitMQAddress) URL() string { return r.VhostURL("/") }

// VhostURL returns the AMQP address of a vhost, which need not exist yet.
func (r RabbitMQAddress) VhostURL(name string) string {
	path, scheme := url.PathEscape(name), "amqp"
	if name == "/" {
		path = "" // clients use the default vhost if the path is empty
	}
	if r.TLS {
		scheme = "amqps"
	}
	return fmt.Sprintf("%s://guest:guest@%s/%s", scheme, r.Addr(), path)
}

// ManagementURL returns the root of the management plugin's HTTP API, including the user. Only a
// server with that plugin answers there.
func (r RabbitMQAddress) ManagementURL() string {
	return fmt.Sprintf("http://guest:guest@%s/api", local(r.ManagementPort))
}

// PrometheusAddr returns the host and port of the prometheus plugin. Only a server with that plugin
// answers there.
func (r RabbitMQAddress) PrometheusAddr() string { return local(r.PrometheusPort) }

// Name returns the node's name in the cluster.
func (r RabbitMQAddress) Name() string { return r.Node }

// Ctl runs rabbitmqctl on this server and returns its output. It costs one or two seconds of
// processor time, to start an Erlang machine. Eval costs almost none.
func (r RabbitMQAddress) Ctl(ctx context.Context, args ...string) (string, error) {
	cmd := r.script(filepath.Join(rabbitMQScripts, "rabbitmqctl"), args...)
	var output bytes.Buffer
	cmd.Stdout = &output
	if err := run(ctx, cmd); err != nil {
		return output.String(), err
	}
	return output.String(), nil
}

// evalLimit bounds an Eval, in case a node or a queue does not answer.
const evalLimit = time.Minute

// Eval evaluates Erlang expressions in the server, separated by commas, and returns the
// last one's value as Erlang writes it.
func (r RabbitMQAddress) Eval(ctx context.Context, format string, args ...any) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, evalLimit, errors.New("the server does not answer"))
	defer cancel()
	program, err := find("erl_call", "erlang-base")
	if err != nil {
		return "", err
	}
	// The name must be unique: of two callers with the same name the server refuses one. erl_call's
	// random names (-r) depend only on the second.
	caller := fmt.Sprintf("call-%d-%d", os.Getpid(), calls.Add(1))
	cmd := r.script(program, "-h", caller, "-sname", r.Node, "-e")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(format, args...) + ".\n")
	var output bytes.Buffer
	cmd.Stdout = &output
	if err := run(ctx, cmd); err != nil {
		return "", err
	}
	value, ok := strings.CutPrefix(output.String(), "{ok, ")
	if !ok { // erl_call itself succeeds even then
		return "", fmt.Errorf("evaluate Erlang: %s", &output)
	}
	return strings.TrimSuffix(value, "}"), nil
}

var calls atomic.Int64

// SyncDeclarations writes the declared queues to the disk, so that the node finds them again after
// a SIGKILL. RabbitMQ 3.10 confirms a declaration seconds before it writes it. A queue of the last
// two seconds is then gone, or a quorum queue has no log and no leader, and its confirmed messages
// are lost. Measured: of twelve quorum queues that were killed right after their declaration four
// had no leader; of twelve after a SyncDeclarations none.
func (r RabbitMQAddress) SyncDeclarations(ctx context.Context) error {
	if _, err := r.Eval(ctx, `catch mnesia:sync_log(), [dets:sync(T) || T <- dets:all()]`); err != nil {
		return fmt.Errorf("sync declarations: %w", err)
	}
	return nil
}

// Queues returns one item of each queue in a vhost, such as leader or messages, by the queue's
// name.
func (r RabbitMQAddress) Queues(ctx context.Context, vhost, item string) (map[string]string, error) {
	value, err := r.Eval(ctx, `[lists:flatten(io_lib:format("~s=~0p", [N, V]))
		|| [{name, {resource, _, queue, N}}, {_, V}] <- rabbit_amqqueue:info_all(<<"%s">>, [name, %s])]`, vhost, item)
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	queues := make(map[string]string)
	for _, quoted := range strings.Split(strings.Trim(value, "[]"), ", ") {
		if quoted == "" {
			continue
		}
		line, err := strconv.Unquote(quoted)
		name, told, ok := strings.Cut(line, "=")
		if err != nil || !ok {
			return nil, fmt.Errorf("list queues: not understood: %s", value)
		}
		queues[name] = told
	}
	return queues, nil
}

// Addr returns the host and port at which the server listens. It stays the same over a
// restart.
func (p PostgresAddress) Addr() string { return local(p.Port) }

// URL returns the address of the database postgres.
func (p PostgresAddress) URL() string { return p.DatabaseURL("postgres") }

// DatabaseURL returns the address of a database, which need not exist yet.
func (p PostgresAddress) DatabaseURL(name string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", p.Addr(), url.PathEscape(name))
}

// Addr returns the host and port at which the server listens. It stays the same over a
// restart.
func (m MariaDBAddress) Addr() string { return local(m.Port) }

// DSN returns the address of the server without a database, in the form of
// github.com/go-sql-driver/mysql.
func (m MariaDBAddress) DSN() string { return m.DatabaseDSN("") }

// DatabaseDSN returns the address of a database, which need not exist yet.
func (m MariaDBAddress) DatabaseDSN(name string) string {
	return fmt.Sprintf("root@tcp(%s)/%s", m.Addr(), name)
}
