package main

import (
	"cmp"

	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/environment"
	"github.com/twoqueue/twoqueue/cmd/internal/transit"
	"github.com/twoqueue/twoqueue/cmd/internal/variables"
)

const prefix = variables.Prefix

// config is the environment: the verifier's variables that the tool needs, and a few of its
// own. The help is generated from it.
type config struct {
	variables.Bridge

	Management struct {
		URL     string `desc:"the broker's management API, for facts that AMQP does not report: http://user:password@host:15672, or https with the parameters cacertfile, certfile and keyfile; a URL without a user takes the user of BRIDGE_AMQP_URL; optional"`
		URLFile string `split_words:"true" desc:"a file that contains the URL instead"`
	}
	Inbox struct {
		URL     string          `desc:"the receiver's database with the inbox, in the forms of BRIDGE_DATABASE_URL; optional"`
		URLFile string          `split_words:"true" desc:"a file that contains the URL instead"`
		Schema  database.Schema `desc:"the schema that has the inbox's tables in that database, as BRIDGE_SCHEMA (default: BRIDGE_SCHEMA if BRIDGE_INBOX_URL is not set)"`
	}
}

// load reads the environment. Its error names the variable and the fix. It accepts missing
// URLs; a command that needs a server refuses a missing one. offline allows URLs without TLS.
func load(offline bool) (config, error) {
	var c config
	err := environment.ReadShared(prefix, &c)
	c.Insecure = c.Insecure || transit.Insecure(offline)
	if err == nil {
		err = c.Open()
	}
	if err == nil {
		err = environment.Open(
			environment.Secret{Name: "BRIDGE_MANAGEMENT_URL", Value: &c.Management.URL, File: c.Management.URLFile,
				Check: transit.Refuse(c.Insecure, "BRIDGE_MANAGEMENT_URL", transit.HTTP)},
			environment.Secret{Name: "BRIDGE_INBOX_URL", Value: &c.Inbox.URL, File: c.Inbox.URLFile,
				Check: transit.Refuse(c.Insecure, "BRIDGE_INBOX_URL", transit.Database)})
	}
	if err == nil && c.Inbox.URL == "" {
		c.Inbox.Schema = cmp.Or(c.Inbox.Schema, c.Schema)
	}
	if err == nil {
		err = c.Inbox.Schema.Check("BRIDGE_INBOX_SCHEMA", cmp.Or(c.Inbox.URL, c.Database.URL))
	}
	if err != nil {
		return c, &misuse{err}
	}
	return c, nil
}
