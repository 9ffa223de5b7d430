package servers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// RabbitMQOptions are the options of a RabbitMQ; nil means all defaults.
type RabbitMQOptions struct {
	// Plugins to enable, by name; none by default. The HTTP ports of rabbitmq_management and
	// rabbitmq_prometheus are configured automatically.
	Plugins []string
	// Config holds further lines for rabbitmq.conf.
	Config string
	// TLS makes the server accept only TLS, from clients whose certificates this authority has
	// signed.
	TLS *Authority
	// BusyWait makes idle schedulers spin for a while, which is RabbitMQ's default. Without
	// BusyWait they leave the processors to the other servers on the machine.
	BusyWait bool
	// Log receives the server's log. Without it the log is kept only for errors.
	Log io.Writer
}

// RabbitMQ is a private RabbitMQ of one node, or a node of a Cluster, with the user
// guest.
type RabbitMQ struct {
	server
	RabbitMQAddress
	cookie string
}

// The wrappers of the same names in /usr/sbin would switch the user.
const rabbitMQScripts = "/usr/lib/rabbitmq/bin"

// StartRabbitMQ starts a RabbitMQ and waits until it accepts connections, which takes three to ten
// seconds.
func StartRabbitMQ(ctx context.Context, options *RabbitMQOptions) (*RabbitMQ, error) {
	if options == nil {
		options = new(RabbitMQOptions)
	}
	return onFreePorts(ctx, 5, func(ports []int) (*RabbitMQ, error) {
		return startRabbitMQ(ctx, options, ports, nil)
	})
}

// startRabbitMQ starts a node. If first is not nil, the node joins its cluster and shares its
// cookie and port mapper.
func startRabbitMQ(ctx context.Context, options *RabbitMQOptions, ports []int, first *RabbitMQ) (*RabbitMQ, error) {
	program, err := find("rabbitmq-server", "rabbitmq-server", filepath.Join(rabbitMQScripts, "rabbitmq-server"))
	if err != nil {
		return nil, err
	}
	epmd, err := find("epmd", "erlang-base")
	if err != nil {
		return nil, err
	}
	home, err := newHome("rabbitmq", "")
	if err != nil {
		return nil, fmt.Errorf("start RabbitMQ: %w", err)
	}
	port, distribution, epmdPort, management, prometheus := ports[0], ports[1], ports[2], ports[3], ports[4]
	node, cookie := fmt.Sprintf("twoqueue%d@localhost", port), rand.Text()

	// The log goes to this process's pipe; 'startup complete' in it means readiness.
	config := "log.console = true\nlog.file = false\ndisk_free_limit.absolute = 50MB\n"
	if options.TLS == nil {
		config += fmt.Sprintf("listeners.tcp.1 = 127.0.0.1:%d\n", port)
	} else {
		config += fmt.Sprintf(`listeners.tcp = none
listeners.ssl.1 = 127.0.0.1:%d
ssl_options.cacertfile = %s
ssl_options.certfile = %s
ssl_options.keyfile = %s
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
`, port, home.path("ca.pem"), home.path("cert.pem"), home.path("key.pem"))
	}
	if slices.Contains(options.Plugins, "rabbitmq_management") {
		config += fmt.Sprintf("management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = %d\n", management)
	}
	if slices.Contains(options.Plugins, "rabbitmq_prometheus") {
		config += fmt.Sprintf("prometheus.tcp.ip = 127.0.0.1\nprometheus.tcp.port = %d\n", prometheus)
	}
	if first != nil {
		epmdPort, cookie = first.EpmdPort, first.cookie
		config += fmt.Sprintf("cluster_formation.classic_config.nodes.1 = %s\ncluster_formation.classic_config.nodes.2 = %s\n", first.Node, node)
	}
	err = errors.Join(
		home.write("rabbitmq.conf", config+options.Config+"\n", 0o600),
		home.write("plugins", "["+strings.Join(options.Plugins, ",")+"].\n", 0o600),
		home.write(".erlang.cookie", cookie, 0o400),
	)
	if err == nil && options.TLS != nil {
		err = options.TLS.equip(home)
	}
	r := &RabbitMQ{cookie: cookie, RabbitMQAddress: RabbitMQAddress{Port: port, ManagementPort: management, PrometheusPort: prometheus,
		TLS: options.TLS != nil, Node: node, EpmdPort: epmdPort, Folder: home.folder}}
	r.server = server{
		name:       "RabbitMQ",
		home:       home,
		ready:      "Server startup complete",
		stopSignal: syscall.SIGTERM,
		log:        options.Log,
		command: func() *exec.Cmd {
			cmd := r.script(program)
			cmd.Env = append(cmd.Env, fmt.Sprintf("RABBITMQ_DIST_PORT=%d", distribution))
			if !options.BusyWait { // https://www.rabbitmq.com/docs/runtime#cpu-reduce-idle-usage
				cmd.Env = append(cmd.Env, "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+sbwt none +sbwtdcpu none +sbwtdio none")
			}
			return cmd
		},
	}
	if err == nil && first == nil {
		r.companion, err = startEpmd(ctx, home, epmd, epmdPort)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start RabbitMQ: %w", err), r.Stop())
	}
	if err := r.begin(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

// startEpmd starts Erlang's port mapper, which every node needs. Without one at its port a node
// would start a port mapper as a daemon that outlives the node.
func startEpmd(ctx context.Context, home home, program string, port int) (*process, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	cmd := home.command(program, "-d", "-d", "-address", "127.0.0.1", "-port", fmt.Sprint(port))
	p, err := startProcess(cmd, "entering the main select() loop", nil)
	if err != nil {
		return nil, fmt.Errorf("start epmd: %w", err)
	}
	if err := p.awaitReady(ctx); err != nil {
		return nil, fmt.Errorf("start epmd: %w", err)
	}
	return p, nil
}

// script returns a command that runs one of RabbitMQ's scripts, configured for this node alone.
func (r RabbitMQAddress) script(program string, args ...string) *exec.Cmd {
	home := home{folder: r.Folder}
	cmd := home.command(program, args...)
	cmd.Env = append(cmd.Env,
		"RABBITMQ_NODENAME="+r.Node,
		fmt.Sprintf("RABBITMQ_NODE_PORT=%d", r.Port),
		fmt.Sprintf("ERL_EPMD_PORT=%d", r.EpmdPort),
		"RABBITMQ_CONFIG_FILE="+home.path("rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE="+home.path("advanced.config"),
		"RABBITMQ_CONF_ENV_FILE="+os.DevNull,
		"RABBITMQ_ENABLED_PLUGINS_FILE="+home.path("plugins"),
		"RABBITMQ_MNESIA_BASE="+home.path("data"),
		"RABBITMQ_LOG_BASE="+home.path("log"),
		"RABBITMQ_PID_FILE="+home.path("pid"),
		"RUNNING_UNDER_SYSTEMD=1", // the script turns into the server by exec
	)
	return cmd
}

// SetMemoryAlarm sets or clears the memory alarm, during which the server blocks
// all connections that publish. A restart clears it.
func (r *RabbitMQ) SetMemoryAlarm(ctx context.Context, on bool) error {
	watermark := "0.4"
	if on {
		watermark = "0.0000001"
	}
	return r.set(ctx, "memory alarm", "vm_memory_monitor:set_vm_memory_high_watermark(%s)", watermark)
}

// SetMaxMessageSize sets the largest body that the server accepts, for channels that are opened
// later. A restart resets it.
func (r RabbitMQAddress) SetMaxMessageSize(ctx context.Context, bytes int) error {
	// 4.x reads the setting once at its start, and keeps it as a persistent term.
	return r.set(ctx, "max_message_size", "application:set_env(rabbit, max_message_size, %d), persistent_term:put(max_message_size, %[1]d)", bytes)
}

// SetConsumerTimeout sets how long a consumer may take for an ack, for channels that are opened
// later, and makes the server check for overdue acks more often than once a minute. A restart
// resets it.
func (r RabbitMQAddress) SetConsumerTimeout(ctx context.Context, timeout time.Duration) error {
	return r.set(ctx, "consumer_timeout", "application:set_env(rabbit, consumer_timeout, %d), application:set_env(rabbit, channel_tick_interval, 500)", timeout.Milliseconds())
}

// SetClassicQueues allows or forbids new classic queues, from RabbitMQ 4.3 on. A restart allows them.
func (r RabbitMQAddress) SetClassicQueues(ctx context.Context, on bool) error {
	return r.set(ctx, "queue_types.classic.enabled", "application:set_env(rabbit, classic_queues_enabled, %t)", on)
}

// SetMaxConnections limits a user's connections; open ones stay. A negative number means no limit.
func (r RabbitMQAddress) SetMaxConnections(ctx context.Context, user string, n int) error {
	return r.set(ctx, "max-connections", `ok = rabbit_auth_backend_internal:set_user_limits(<<"%s">>, #{<<"max-connections">> => %d}, <<"test">>)`, user, n)
}

func (r RabbitMQAddress) set(ctx context.Context, what, format string, args ...any) error {
	if _, err := r.Eval(ctx, format, args...); err != nil {
		return fmt.Errorf("set %s: %w", what, err)
	}
	return nil
}
