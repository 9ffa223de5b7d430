// Package variables has the BRIDGE_... variables that verifiers and bridgectl share: the servers,
// the queues, and the verifiers' options that an operator needs too.
package variables

import (
	"errors"
	"fmt"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/environment"
	"github.com/twoqueue/twoqueue/cmd/internal/transit"
)

// Prefix begins the names of these variables.
const Prefix = "BRIDGE"

// Bridge is the part of a command's configuration that the commands share.
type Bridge struct {
	Database struct {
		URL     string `desc:"the database that holds the ledger: postgres:// or mysql://user:password@host:port/database, sqlserver:// or azuresql://user:password@host:port?database=name, or sqlite:/path/to/file; required by a verifier"`
		URLFile string `split_words:"true" desc:"a file that contains the URL instead; it is read again for each connection"`
	}
	Schema         database.Schema   `desc:"the schema that has the bridge's tables, on PostgreSQL or SQL Server, in the catalogue's spelling; all senders must open the same schema (default: the login's search_path or default schema decides)"`
	OwnTable       database.OwnTable `split_words:"true" desc:"a table of the application's own whose rows are looked up instead of the ledger's, as TABLE.COLUMN or SCHEMA.TABLE.COLUMN, in the catalogue's spelling; its senders open the same table with OpenOwnTable"`
	OwnTableCanary string            `split_words:"true" desc:"an INSERT of one row into that table, with $id in the place of the ID; the proof runs it and rolls it back at the start of each session, to show that this login sees the table's rows (row-level security can hide them)"`
	AMQP           struct {
		URL     string `desc:"the broker: amqp://user:password@host:port/vhost, or amqps, with commas between the addresses of a cluster; required by a verifier, but not with -migrate"`
		URLFile string `split_words:"true" desc:"a file that contains the URL instead; it is read again for each connection"`
	}
	Insecure      transit.Insecure   `default:"false" desc:"true allows connections to other machines without TLS or with an unverified certificate; otherwise a URL that allows such a connection is refused, except to localhost, a loopback address or a socket"`
	Queue         string             `default:"twoqueue" desc:"the staging queue; the waiting queue and the dead queue beside it are named after it"`
	Exchange      string             `desc:"a direct exchange of the bridge's own to which senders publish, such as twoqueue.stage; all senders must use the same name, and their login needs the right to write to this exchange and to no other one (default: the default exchange, whose right reaches every queue of the virtual host)"`
	Classic       environment.Truth  `default:"false" desc:"the queues are classic queues instead of quorum queues; RabbitMQ does not fsync a message in them before it confirms it, so a crash of its host can lose committed messages that no row carries"`
	Audit         environment.Copies `default:"0" desc:"how many copies of dropped messages (rolled back, or forwarded before) are kept in an audit queue beside the staging queue; 0: no audit queue"`
	OrderedShards environment.Shards `split_words:"true" default:"0" desc:"the number of ordered queues beside the staging queue, for messages with an order key; all senders must use the same number; 0: none"`
	Allow         Allow              `desc:"the targets that messages may be forwarded to, as EXCHANGE:KEY patterns with commas between them, where * stands for any characters; a queue is :NAME; *:* allows every target; a backslash before a colon or a comma makes it part of a name; a message committed for another target goes to the dead queue; required by a verifier, but not with -migrate"`
	HandBack      environment.Span   `split_words:"true" default:"10m" desc:"how long a verifier holds a message unacked before it sets the message aside; one and a half times it, plus BRIDGE_CONFIRM_TIMEOUT, must be shorter than the broker's consumer timeout (30m unless changed)"`
}

// Open reads the URLs that are in files, and checks the URLs and the names.
func (b *Bridge) Open() error {
	database, broker := b.Secrets()
	if err := environment.Open(database, broker); err != nil {
		return err
	}
	if err := b.Schema.Check("BRIDGE_SCHEMA", b.Database.URL); err != nil {
		return err
	}
	if err := bridge.CheckExchange(b.Exchange); err != nil {
		return fmt.Errorf("BRIDGE_EXCHANGE: %w", err)
	}
	if b.OwnTable == "" && b.OwnTableCanary != "" {
		return errors.New("BRIDGE_OWN_TABLE_CANARY: is set, and BRIDGE_OWN_TABLE is not; set both, or unset it")
	}
	return CheckQueue("BRIDGE_QUEUE", b.Queue)
}

// Secrets returns the two URLs, with the files that may have them.
func (b *Bridge) Secrets() (database, broker environment.Secret) {
	return environment.Secret{Name: "BRIDGE_DATABASE_URL", Value: &b.Database.URL, File: b.Database.URLFile,
			Check: transit.Refuse(b.Insecure, "BRIDGE_DATABASE_URL", transit.Database)},
		environment.Secret{Name: "BRIDGE_AMQP_URL", Value: &b.AMQP.URL, File: b.AMQP.URLFile,
			Check: transit.Refuse(b.Insecure, "BRIDGE_AMQP_URL", transit.Broker)}
}

// CheckQueue checks a staging queue's name, which must leave room for the names of the queues beside
// it. from is the variable or the flag that has the name.
func CheckQueue(from, name string) error {
	if name == "" || len(name) > 200 {
		return fmt.Errorf("%s: must have 1 to 200 bytes; name the staging queue or unset it", from)
	}
	return nil
}

// Topology returns the staging queue with the queues beside it.
func (b *Bridge) Topology() bridge.Topology {
	return bridge.Topology{Queue: b.Queue, Exchange: b.Exchange, Classic: bool(b.Classic), Audit: int(b.Audit), OrderedShards: int(b.OrderedShards)}
}
