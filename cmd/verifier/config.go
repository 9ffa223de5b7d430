package main

import (
	"errors"
	"log/slog"
	"time"

	"github.com/twoqueue/twoqueue/cmd/internal/environment"
	"github.com/twoqueue/twoqueue/cmd/internal/variables"
	"github.com/twoqueue/twoqueue/verifier"
)

const (
	prefix = variables.Prefix
	// testPrefix begins the variables of the project's own tests. They may be set where a verifier
	// is started.
	testPrefix = prefix + "_TEST"
	// These begin variables that only bridgectl reads. It is run where a verifier runs.
	managementPrefix = prefix + "_MANAGEMENT"
	inboxPrefix      = prefix + "_INBOX"
)

// config is the environment. The help and the README's table of variables are made from it. A
// variable's name is BRIDGE_ and the field's words.
type config struct {
	variables.Bridge

	HoldKeys environment.Truth `split_words:"true" default:"false" desc:"a committed message with an order key that would go to the dead queue stays in its ordered queue instead, and holds its key until the cause is fixed"`

	Prefetch environment.Count `default:"3000" desc:"how many messages of the staging queue are held at once; half as many (at least 20) of the waiting queue and 500 of each ordered queue are held in addition; bounds the memory together with BRIDGE_MAX_BYTES"`
	MaxBytes environment.Bytes `split_words:"true" default:"268435456" desc:"how many bytes of memory held messages may use, with their decoded headers: 3/4 for the staging queue, 1/4 for the waiting queue; with ordered queues 2/4, 1/4 and 1/4 for these; a larger message is held alone"`
	Patience environment.Span  `default:"2s" desc:"how long a message waits before it is set aside in the waiting queue; set it above the time that transactions usually take"`

	Settlers environment.Count `default:"16" desc:"how many lookups wait at the same time, each for a second at most and on its own database connection; the worker uses up to eleven more connections"`

	Unroutable     environment.Span  `default:"1m" desc:"how long a message whose target is missing is retried before it goes to the dead queue; for messages with an order key, how long the target has been missing"`
	Copies         environment.Count `default:"10" desc:"how many times a message is published to an exchange that nacks it because one of its queues is full, before the message goes to the dead queue; the exchange's other queues get as many copies"`
	ConfirmTimeout environment.Span  `split_words:"true" default:"10s" desc:"how long a forwarded message may stay unconfirmed before its target counts as stuck"`
	KeepUserID     environment.Truth `split_words:"true" default:"false" desc:"forward the user-id that the sender set; the broker refuses it unless the login has the tag impersonator"`
	SweepAge       age               `split_words:"true" default:"168h" desc:"the age at which an orphan row of the ledger is removed while the queues are empty; must exceed the longest transaction plus the longest outage, and be at least 1h; never turns it off"`
	Drain          environment.Span  `default:"10s" desc:"how long draining may take after SIGTERM; then unacked messages are requeued"`

	ExplainAfter   patience         `split_words:"true" default:"10s" desc:"how long a message waits for an open transaction before the log names the transaction's session, if the database's login may see it; or never"`
	SampleInterval environment.Span `split_words:"true" default:"30s" desc:"how often the database's health and the number of due carried messages are checked; every tenth check also counts orphan rows"`

	HTTP struct {
		Addr environment.Address `default:":8081" desc:"the address of /livez, /readyz and /metrics; or none"`
	}
	Status struct {
		Addr  environment.Private `default:"none" desc:"the address of the status page: host:port, or :port for 127.0.0.1; the page has no login and shows statements, so choose an address that only operators reach"`
		Hosts environment.Hosts   `desc:"the host names under which the status page and the profiles answer, in addition to localhost and loopback addresses: as in a browser's address, without the port, with commas between them (default: none)"`
	}
	Pprof struct {
		Addr environment.Private `default:"none" desc:"the address of the worker's profiles at /debug/pprof/: host:port, or :port for 127.0.0.1; they have no login"`
	}
	Log environment.Log
}

// load reads the environment. Its error names the variable and the fix.
func load(migrating bool) (config, error) {
	var c config
	if err := environment.Read(prefix, &c, testPrefix, managementPrefix, inboxPrefix); err != nil {
		return c, err
	}
	if err := c.Open(); err != nil {
		return c, err
	}
	switch {
	case c.Database.URL == "":
		return c, errors.New("BRIDGE_DATABASE_URL: is not set; name the database that holds the ledger, or a file with BRIDGE_DATABASE_URL_FILE")
	case c.AMQP.URL == "" && !migrating:
		return c, errors.New("BRIDGE_AMQP_URL: is not set; name the broker, or a file with BRIDGE_AMQP_URL_FILE")
	case len(c.Allow) == 0 && !migrating:
		return c, errors.New("BRIDGE_ALLOW: is not set; name the targets that messages may go to, such as :emails for the queue emails or orders:* for the exchange orders, or *:* for every one")
	}
	return c, nil
}

func (c *config) options(logger *slog.Logger) *verifier.Options {
	return &verifier.Options{
		Topology:       c.Topology(),
		Prefetch:       int(c.Prefetch),
		MaxBytes:       int(c.MaxBytes),
		HoldKeys:       bool(c.HoldKeys),
		Patience:       c.Patience.Duration(),
		HandBack:       c.HandBack.Duration(),
		Settlers:       int(c.Settlers),
		Allow:          c.Allow,
		Unroutable:     c.Unroutable.Duration(),
		Copies:         int(c.Copies),
		ConfirmTimeout: c.ConfirmTimeout.Duration(),
		SweepAge:       time.Duration(c.SweepAge),
		Drain:          c.Drain.Duration(),
		ExplainAfter:   max(0, time.Duration(c.ExplainAfter)),
		KeepUserID:     bool(c.KeepUserID),
		Logger:         logger,
	}
}
