package main

import (
	"github.com/twoqueue/twoqueue/cmd/internal/allow"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/environment"
)

const prefix = "BRIDGE"

// config is the environment: the verifier's variables as far as the tool needs them,
// with the same defaults, and a few of its own. The help is made from it.
type config struct {
	Database struct {
		URL     string `desc:"the database that holds the ledger: postgres:// or mysql://user:password@host:port/database, sqlserver:// or azuresql://user:password@host:port?database=name, or sqlite:/path/to/file"`
		URLFile string `split_words:"true" desc:"a file with it instead"`
	}
	OwnTable database.OwnTable `split_words:"true" desc:"the application's own table that verifiers look up instead of the ledger's, in their form"`
	AMQP     struct {
		URL     string `desc:"the broker: amqp://user:password@host:port/vhost, or amqps"`
		URLFile string `split_words:"true" desc:"a file with it instead"`
	}
	Management struct {
		URL     string `desc:"the broker's management API, for what cannot be asked over AMQP: http://user:password@host:15672, or https with the parameters cacertfile, certfile and keyfile; without a user it is the one of BRIDGE_AMQP_URL; optional"`
		URLFile string `split_words:"true" desc:"a file with it instead"`
	}
	Inbox struct {
		URL     string `desc:"the receiver's database with the inbox, in the forms of BRIDGE_DATABASE_URL; optional"`
		URLFile string `split_words:"true" desc:"a file with it instead"`
	}
	Queue         string             `default:"twoqueue" desc:"the staging queue; the waiting queue and the dead queue beside it are named after it"`
	Classic       environment.Truth  `default:"false" desc:"the queues are classic queues instead of quorum queues"`
	Audit         environment.Copies `default:"0" desc:"how many messages the audit queue keeps; 0: there is no such queue"`
	OrderedShards environment.Shards `split_words:"true" default:"0" desc:"how many ordered queues there are, for messages with an order key; 0: there are none"`
	Allow         allow.List         `desc:"the targets that verifiers may forward to, in their form; dead replay sends what is for another one with --force only (default: every target is allowed)"`
	HandBack      environment.Span   `split_words:"true" default:"10m" desc:"how long a verifier holds a message unacked; must be shorter than the broker's consumer timeout"`
}

// load reads the environment. Its error names the variable and says what to do.
// Whether a server is named is asked when it is needed.
func load() (config, error) {
	var c config
	if err := environment.ReadShared(prefix, &c); err != nil {
		return c, &misuse{err}
	}
	err := environment.Open(
		environment.Secret{Name: "BRIDGE_DATABASE_URL", Value: &c.Database.URL, File: c.Database.URLFile},
		environment.Secret{Name: "BRIDGE_AMQP_URL", Value: &c.AMQP.URL, File: c.AMQP.URLFile},
		environment.Secret{Name: "BRIDGE_MANAGEMENT_URL", Value: &c.Management.URL, File: c.Management.URLFile},
		environment.Secret{Name: "BRIDGE_INBOX_URL", Value: &c.Inbox.URL, File: c.Inbox.URLFile})
	if err != nil {
		return c, &misuse{err}
	}
	if c.Queue == "" || len(c.Queue) > 200 {
		return c, misused("BRIDGE_QUEUE: must have 1 to 200 bytes; name the staging queue or unset it")
	}
	return c, nil
}
