package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/kelseyhightower/envconfig"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/verifier"
)

const (
	prefix = "BRIDGE"
	// testPrefix starts the variables of the project's own tests, which may be set
	// where a verifier is started too.
	testPrefix = prefix + "_TEST_"
)

// config is the environment. The names of the variables, the help and the table
// in the README are made from it; a variable is BRIDGE_ and the field's words.
type config struct {
	Database struct {
		URL string `desc:"the database that holds the ledger: postgres:// or mysql://user:password@host:port/database, sqlserver:// or azuresql://user:password@host:port?database=name, or sqlite:/path/to/file; required"`
	}
	AMQP struct {
		URL string `desc:"the broker: amqp://user:password@host:port/vhost, or amqps; required, but not with -migrate"`
	}
	Queue   string `default:"twoqueue" desc:"the staging queue; the waiting queue and the dead queue beside it are named after it"`
	Classic truth  `default:"false" desc:"declare classic queues instead of quorum queues"`

	Prefetch        count `default:"3000" desc:"how many staged messages are held at once; bounds the memory"`
	Waiting         count `desc:"how many of these may wait, for an open transaction or a target that takes nothing; more are set aside in the waiting queue (default: half of BRIDGE_PREFETCH)"`
	WaitingPrefetch count `split_words:"true" default:"500" desc:"how many messages of the waiting queue are held at once, in addition"`
	Patience        span  `default:"2s" desc:"how long a message waits before it is set aside in the waiting queue"`
	HandBack        span  `split_words:"true" default:"10m" desc:"how long a message is held unacked; must be shorter than the broker's consumer timeout (30m unless changed)"`

	Settlers   count `default:"16" desc:"how many lookups wait at the same time, each on a database connection of its own; the verifier uses up to three more"`
	SettleWait span  `split_words:"true" default:"1s" desc:"the longest wait of one such lookup"`

	Allow          targets `desc:"the targets that may be forwarded to, as EXCHANGE:KEY patterns with commas between them, where * stands for any characters; a queue is :NAME; what is committed for another target goes to the dead queue (default: every target is allowed)"`
	Unroutable     span    `default:"1m" desc:"how long a message whose target is missing is retried before it goes to the dead queue"`
	ConfirmTimeout span    `split_words:"true" default:"10s" desc:"how long a forwarded message may stay unconfirmed before its target counts as stuck"`
	KeepUserID     truth   `split_words:"true" default:"false" desc:"forward the user-id that the sender set; the broker refuses it unless the login may"`
	Drain          span    `default:"10s" desc:"how long the end may take, after SIGTERM"`

	Log struct {
		Level  level  `default:"info" desc:"debug, info, warn or error"`
		Format format `default:"text" desc:"text or json, on standard error"`
	}
}

// load reads the environment. Its error names the variable and says what to do.
func load(migrating bool) (config, error) {
	var c config
	if err := refuseUnknown(); err != nil {
		return c, err
	}
	if err := envconfig.Process(prefix, &c); err != nil {
		var parse *envconfig.ParseError
		if errors.As(err, &parse) {
			return c, fmt.Errorf("%s: %w", parse.KeyName, parse.Err)
		}
		return c, err
	}
	switch {
	case c.Database.URL == "":
		return c, errors.New("BRIDGE_DATABASE_URL: is not set; name the database that holds the ledger")
	case c.AMQP.URL == "" && !migrating:
		return c, errors.New("BRIDGE_AMQP_URL: is not set; name the broker")
	case c.Queue == "" || len(c.Queue) > 200:
		return c, errors.New("BRIDGE_QUEUE: must have 1 to 200 bytes; name the staging queue or unset it")
	case c.Waiting > c.Prefetch:
		return c, errors.New("BRIDGE_WAITING: is larger than BRIDGE_PREFETCH; lower the one or raise the other")
	}
	return c, nil
}

// refuseUnknown finds mistyped variables, which would otherwise be ignored.
func refuseUnknown() error {
	known, err := variables()
	if err != nil {
		return err
	}
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, prefix+"_") || strings.HasPrefix(name, testPrefix) || known[name] {
			continue
		}
		if near := nearest(name, known); near != "" {
			return fmt.Errorf("%s: unknown variable; did you mean %s?", name, near)
		}
		return fmt.Errorf("%s: unknown variable; unset it (verifier -help lists all)", name)
	}
	return nil
}

func variables() (map[string]bool, error) {
	var text strings.Builder
	if err := usage(&text, `{{range .}}{{usage_key .}} {{end}}`); err != nil {
		return nil, err
	}
	known := make(map[string]bool)
	for _, name := range strings.Fields(text.String()) {
		known[name] = true
	}
	return known, nil
}

// usage writes the variables by a template of envconfig.
func usage(w io.Writer, template string) error {
	return envconfig.Usagef(prefix, new(config), w, template)
}

func (c *config) logger(w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.Level(c.Log.Level)}
	if c.Log.Format == formatJSON {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

func (c *config) options(logger *slog.Logger) *verifier.Options {
	return &verifier.Options{
		Topology:        bridge.Topology{Queue: c.Queue, Classic: bool(c.Classic)},
		Prefetch:        int(c.Prefetch),
		Waiting:         int(c.Waiting),
		WaitingPrefetch: int(c.WaitingPrefetch),
		Patience:        c.Patience.duration(),
		HandBack:        c.HandBack.duration(),
		Settlers:        int(c.Settlers),
		SettleWait:      c.SettleWait.duration(),
		Allow:           c.Allow,
		Unroutable:      c.Unroutable.duration(),
		ConfirmTimeout:  c.ConfirmTimeout.duration(),
		Drain:           c.Drain.duration(),
		KeepUserID:      bool(c.KeepUserID),
		Logger:          logger,
	}
}
