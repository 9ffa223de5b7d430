package main

import (
	"errors"

	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/environment"
	"github.com/twoqueue/twoqueue/cmd/internal/transit"
)

const prefix = "SHOP"

// config is the environment. The help is made from it. A variable's name is SHOP_ and the field's
// words.
type config struct {
	Database struct {
		URL     string `desc:"the shop's database, which has the ledger: postgres:// or mysql://user:password@host:port/database, sqlserver:// or azuresql://user:password@host:port?database=name, or sqlite:/path/to/file; required"`
		URLFile string `split_words:"true" desc:"a file that contains the URL instead; it is read again for each connection"`
	}
	Schema database.Schema `desc:"the schema that has the ledger's tables, as BRIDGE_SCHEMA of the verifiers (default: the login's search_path or default schema decides, as for the table orders)"`
	AMQP   struct {
		URL     string `desc:"the broker: amqp://user:password@host:port/vhost, or amqps, with commas between the addresses of a cluster; required, but not with -migrate"`
		URLFile string `split_words:"true" desc:"a file that contains the URL instead; it is read again for each connection"`
	}
	Insecure transit.Insecure `default:"false" desc:"true allows connections to other machines without TLS or with an unverified certificate; otherwise a URL that allows such a connection is refused, except to localhost, a loopback address or a socket"`
	Queue    string           `default:"twoqueue" desc:"the staging queue"`
	Exchange string           `desc:"the exchange to which messages are staged, as BRIDGE_EXCHANGE of the verifiers (default: the default exchange)"`
	Emails   string           `default:"emails" desc:"the e-mail gateway's queue, the target of each order's e-mail"`

	Every    environment.Span  `default:"1s" desc:"how often an order is placed"`
	RollBack environment.Count `split_words:"true" default:"10" desc:"one order in this many is rolled back after its e-mail was staged; that e-mail must never be sent"`
	Slow     environment.Count `default:"15" desc:"one order in this many keeps its transaction open for SHOP_HOLD; its e-mail must wait that long, and no other e-mail waits"`
	Hold     environment.Span  `default:"15s" desc:"how long such a transaction stays open"`
	Open     environment.Count `default:"16" desc:"how many transactions, and so database connections, may be open at once; further orders wait"`

	HTTP struct {
		Addr environment.Address `default:"none" desc:"the address of /livez, /readyz and /metrics, such as :8082; or none"`
	}
	Log environment.Log
}

// load reads the environment. Its error names the variable and the fix.
func load(migrating bool) (*config, error) {
	c := new(config)
	if err := environment.Read(prefix, c); err != nil {
		return nil, err
	}
	databaseURL, broker := c.secrets()
	if err := environment.Open(databaseURL, broker); err != nil {
		return nil, err
	}
	if err := c.Schema.Check("SHOP_SCHEMA", c.Database.URL); err != nil {
		return nil, err
	}
	switch {
	case c.Database.URL == "":
		return nil, errors.New("SHOP_DATABASE_URL: is not set; name the shop's database, or a file with SHOP_DATABASE_URL_FILE")
	case c.AMQP.URL == "" && !migrating:
		return nil, errors.New("SHOP_AMQP_URL: is not set; name the broker, or a file with SHOP_AMQP_URL_FILE")
	}
	return c, nil
}

// secrets returns the two URLs with the files that may hold them.
func (c *config) secrets() (database, broker environment.Secret) {
	return environment.Secret{Name: "SHOP_DATABASE_URL", Value: &c.Database.URL, File: c.Database.URLFile,
			Check: transit.Refuse(c.Insecure, "SHOP_DATABASE_URL", transit.Database)},
		environment.Secret{Name: "SHOP_AMQP_URL", Value: &c.AMQP.URL, File: c.AMQP.URLFile,
			Check: transit.Refuse(c.Insecure, "SHOP_AMQP_URL", transit.Broker)}
}

const helpHead = `Usage: shop [-migrate]

An example of an application: places orders continuously, each with an e-mail
that is sent if and only if the order's transaction commits. Some orders roll
back, some keep their transaction open for a while. verifier -migrate makes the
ledger's tables. Runs until SIGTERM or SIGINT; open transactions are then rolled
back.

  -migrate  create the shop's own table, and exit; only -migrate needs the right to
            create tables. Waits up to two minutes for the database
  -help     print this
  -version  print the build's release, revision and Go version

The configuration is the environment. Variables that start with SHOP_ and are
not listed here are an error.

`

const helpTail = `
Exit codes:
  0  stopped by a signal; or -migrate or -help is done
  1  could not start or migrate: one line on standard error says why
  2  an argument or a variable is wrong: one line on standard error names it
`
