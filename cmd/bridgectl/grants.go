package main

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
)

// The roles of programs that package migrate has no role for.
const (
	gatewayRole = "gateway" // cmd/email-gateway
	scalerRole  = "scaler"  // reads the length of the staging queue from the broker
)

func grantRoles() (all []string) {
	for _, role := range migrate.Roles() {
		all = append(all, string(role))
	}
	return append(all, gatewayRole, scalerRole)
}

func newGrantsCommand(a *app) *cobra.Command {
	g := &grants{app: a}
	cmd := &cobra.Command{
		Use:         "grants ROLE",
		Annotations: map[string]string{offline: "true"},
		Short:       "Print the least rights of a role's login as commands for an administrator",
		Long: `Prints the rights at the database of BRIDGE_DATABASE_URL as SQL, and the rights at the broker
as rabbitmqctl commands in comments; --broker prints the commands alone. Contacts no server.
If BRIDGE_INBOX_URL names another database, --inbox prints the rights there. Without --inbox a
role that uses the ledger gets the rights at the ledger's database.
Run the SQL in that database after the tables exist:

  bridgectl grants verifier --login twoqueue_verifier | psql shop
  bridgectl grants verifier --login twoqueue_verifier --broker | sh

The login must exist, with its password: the command prints no password. Its rights at the broker
replace its earlier ones on the virtual host, so grant a login one role there.

  sender    records and stages messages
  canceller a sender that also takes messages back (Sender.Cancel)
  verifier  judges messages; BRIDGE_ALLOW gives the exchanges that it may write to
  receiver  package idempotency, on the queue --target; --declares if it uses
            idempotency.DeclareReceiver or DeadQueue; --sends if it sends replies or
            other messages in its transactions
  effects   a receiver that uses only AtMostOnce, Accept and Work; takes the same two flags
  gateway   the e-mail gateway, on the queue --target
  migrate   creates the tables; no other role needs that right
  operator  bridgectl; it may also read the dead queue of the receiver's queue --target
  scaler    asks the broker's management API for the length of queues (KEDA)`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains(grantRoles(), args[0]) {
				return misused("give one role of %s", strings.Join(grantRoles(), ", "))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			return g.print(args[0])
		},
	}
	cmd.ValidArgsFunction = cobra.FixedCompletions(grantRoles(), cobra.ShellCompDirectiveNoFileComp)
	cmd.Flags().StringVar(&g.login, "login", "", "the login's name (default: twoqueue_ROLE)")
	cmd.Flags().BoolVar(&g.broker, "broker", false, "print the commands for the broker alone")
	cmd.Flags().BoolVar(&g.inbox, "inbox", false, "print the rights at the inbox's database alone")
	cmd.Flags().StringVar(&g.target, "target", "emails", "the queue of a receiver or of the gateway; for an operator, the receiver's queue whose dead queue the operator reads")
	cmd.Flags().BoolVar(&g.declares, "declares", false, "the receiver uses idempotency.DeclareReceiver or DeadQueue")
	cmd.Flags().BoolVar(&g.sends, "sends", false, "the receiver sends messages in its transactions: it needs the rights of a sender too")
	cmd.Flags().StringVar(&g.schema, "schema", "", "the schema of the tables (default: BRIDGE_SCHEMA for the ledger's, BRIDGE_INBOX_SCHEMA for the inbox's)")
	cmd.Flags().StringVar(&g.kind, "database", "", "the kind of database: "+strings.Join(dialects, ", ")+" (default: from BRIDGE_DATABASE_URL)")
	return cmd
}

type grants struct {
	app                         *app
	login, target, schema, kind string
	inbox, broker               bool
	declares, sends             bool
}

// place returns the database in which to grant a role its rights, and the parts of the bridge in that
// database; no parts mean both. A receiver that sends has both in its database.
func (g *grants) place(role migrate.Role) (url string, parts []migrate.Part) {
	c := g.app.config
	other := c.Inbox.URL != "" && !sameDatabase(c.Inbox.URL, c.Database.URL) && !g.sends
	switch receiver := role == migrate.Receiver || role == migrate.Effects; {
	case other && (g.inbox || receiver):
		return c.Inbox.URL, []migrate.Part{migrate.InboxPart}
	case g.inbox:
		return c.Database.URL, []migrate.Part{migrate.InboxPart}
	case other:
		return c.Database.URL, []migrate.Part{migrate.LedgerPart}
	}
	return c.Database.URL, nil
}

// sameDatabase reports whether two URLs name one database. It compares their texts only.
func sameDatabase(a, b string) bool {
	one, err := url.Parse(a)
	if err != nil {
		return a == b
	}
	other, err := url.Parse(b)
	return err == nil && one.Host == other.Host && one.Path == other.Path && one.Query().Get("database") == other.Query().Get("database")
}

// receives reports whether a role is a receiver's. Only such a role takes --declares and --sends.
func receives(role string) bool {
	return role == string(migrate.Receiver) || role == string(migrate.Effects)
}

// loginName matches the names that a login may have here. No character of them ends a quotation in
// SQL or a shell.
var loginName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

func (g *grants) print(role string) error {
	if g.login == "" {
		g.login = "twoqueue_" + role
	}
	if !loginName.MatchString(g.login) {
		return misused("--login: %q has characters other than letters, digits, _, . and -; name another login", g.login)
	}
	if (g.declares || g.sends) && !receives(role) {
		return misused("--declares, --sends: are for the roles receiver and effects, not %s; leave them out", role)
	}
	commands, err := g.commands(role)
	if err != nil {
		return err
	}
	if g.broker {
		return writeLines(g.app.stdout, commands)
	}
	statements, err := g.statements(role)
	if err != nil {
		return err
	}
	for i, command := range commands {
		commands[i] = "-- " + strings.TrimPrefix(command, "# ")
	}
	return writeLines(g.app.stdout, slices.Concat(statements, []string{"", "-- At the broker:"}, commands))
}

func writeLines(w io.Writer, lines []string) error {
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}

// statements returns the SQL of a role.
func (g *grants) statements(role string) ([]string, error) {
	if role == scalerRole {
		return []string{"-- This role needs no login at the database."}, nil
	}
	as := migrate.Role(role)
	if role == gatewayRole {
		as = migrate.Effects
	}
	address, parts := g.place(as)
	dialect := migrate.Dialect(g.kind)
	name := ""
	if g.kind == "" {
		var ok bool
		if dialect, ok = database.DialectOf(address); !ok {
			return nil, misused("--database: is not given, and BRIDGE_DATABASE_URL is not set; give one of %s", strings.Join(dialects, ", "))
		}
		if parsed, err := url.Parse(address); err == nil {
			name = strings.TrimPrefix(parsed.Path, "/")
		}
	}
	to := ""
	switch dialect {
	case migrate.PostgreSQL:
		to = `"` + g.login + `"`
	case migrate.MySQL:
		to = "'" + g.login + "'@'%'"
		if name == "" && role == string(migrate.Migrator) {
			return nil, misused("BRIDGE_DATABASE_URL: is not set, and this role's rights are on a database; set it")
		}
		name = "`" + strings.ReplaceAll(name, "`", "``") + "`"
	case migrate.SQLServer:
		to = "[" + g.login + "]"
	}
	ledger := migrate.Schema(cmp.Or(g.schema, string(g.app.config.Schema)))
	inbox := migrate.Schema(cmp.Or(g.schema, string(g.app.config.Inbox.Schema)))
	rights, err := migrate.Rights(dialect, as, name, ledger, inbox, parts...)
	if err != nil {
		return nil, misused("BRIDGE_DATABASE_URL: %s", err)
	}
	if len(rights) == 0 {
		return []string{"-- This role uses no table of the inbox."}, nil
	}
	if g.sends {
		sending, err := migrate.Rights(dialect, migrate.Sender, name, ledger, inbox)
		if err != nil {
			return nil, misused("BRIDGE_DATABASE_URL: %s", err)
		}
		for _, right := range sending {
			if !slices.Contains(rights, right) { // such as USAGE on the schema
				rights = append(rights, right)
			}
		}
	}
	if role == gatewayRole {
		rights = append(rights, inbox.Statements(dialect, "email_gateway")("SELECT, INSERT, UPDATE, DELETE ON email_gateway"))
	}
	for i, right := range rights {
		rights[i] = "GRANT " + right + " TO " + to + ";"
	}
	if elsewhere := as == migrate.Operator || as == migrate.Migrator; elsewhere && slices.Contains(parts, migrate.LedgerPart) {
		rights = append(rights, "", "-- The inbox is in another database: run there what grants --inbox prints.")
	}
	return rights, nil
}

// commands returns the lines for the broker. A line that begins with # is an explanation.
func (g *grants) commands(role string) ([]string, error) {
	vhost := "/"
	if brokers, err := bridge.ParseURL(g.app.config.AMQP.URL); err == nil {
		vhost = brokers[0].Vhost
	}
	rights, ok := g.brokerRights(role)
	if !ok {
		return []string{"# This role needs no login at the broker."}, nil
	}
	lines := []string{strings.Join([]string{"rabbitmqctl set_permissions -p", shellQuoted(vhost), shellQuoted(g.login),
		shellQuoted(rights.configure), shellQuoted(rights.write), shellQuoted(rights.read)}, " ")}
	if role == scalerRole || role == string(migrate.Operator) {
		lines = append(lines, "rabbitmqctl set_user_tags "+shellQuoted(g.login)+" monitoring")
	}
	if receives(role) && !g.declares {
		lines = append(lines, "# This login may only read its queue. If the receiver uses idempotency.DeclareReceiver or DeadQueue, add --declares.")
	}
	return lines, nil
}

func shellQuoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// A brokerRight has the three patterns of RabbitMQ's permissions.
type brokerRight struct{ configure, write, read string }

// defaultExchange is the name of the default exchange in RabbitMQ's permissions.
const defaultExchange = "amq.default"

// brokerRights returns false for a role that does not use the broker.
func (g *grants) brokerRights(role string) (brokerRight, bool) {
	t := g.app.topology()
	consumed := append([]string{t.Queue, t.WaitingQueue()}, t.OrderedQueues()...)
	var all []string
	for _, queue := range t.Queues() {
		all = append(all, queue.Name)
	}
	staging, bound := defaultExchange, []string(nil)
	if t.Exchange != "" { // a binding needs the rights to write to the queue and to read the exchange
		staging, bound = t.Exchange, append(t.OrderedQueues(), t.Queue)
		all, consumed = append(all, t.Exchange), append(consumed, t.Exchange)
	}
	switch role {
	case string(migrate.Sender), string(migrate.Canceller):
		return brokerRight{pattern(), pattern(staging), pattern()}, true
	case string(migrate.Verifier):
		ledger := t.LedgerQueue() // keeps the verifiers of another ledger away
		return brokerRight{pattern(append(all, ledger)...), g.targets(bound), pattern(append(consumed, ledger)...)}, true
	case string(migrate.Operator):
		all = append(all, t.LedgerQueue()) // the doctor declares it to find out whose it is
		return brokerRight{pattern(all...), g.targets(bound), pattern(append(all, g.target+".dead")...)}, true
	case string(migrate.Receiver), string(migrate.Effects):
		var written []string
		if g.declares {
			written = []string{defaultExchange}
		}
		if g.sends {
			written = append(written, staging)
		}
		if g.declares {
			// The retry queues may have any delays. The declaration of a queue with a dead-letter
			// exchange needs the right to read the queue.
			own := regexp.QuoteMeta(g.target)
			retries := own + `\.retry\..*`
			return brokerRight{anyOf([]string{own, own + `\.dead`, retries}), pattern(written...), anyOf([]string{own, retries})}, true
		}
		return brokerRight{pattern(), pattern(written...), pattern(g.target)}, true
	case gatewayRole:
		return brokerRight{pattern(g.target, g.target+".dead"), pattern(defaultExchange), pattern(g.target)}, true
	case scalerRole:
		return brokerRight{pattern(), pattern(), pattern()}, true
	}
	return brokerRight{}, false
}

// targets returns a pattern that matches the exchanges of BRIDGE_ALLOW, the default exchange, which
// leads to the queues beside the staging queue, and more. Without BRIDGE_ALLOW it matches any name.
func (g *grants) targets(more []string) string {
	if len(g.app.config.Allow) == 0 {
		return ".*"
	}
	var patterns []string
	for _, name := range append(more, defaultExchange) {
		patterns = append(patterns, regexp.QuoteMeta(name))
	}
	for _, allow := range g.app.config.Allow {
		if allow.Exchange != "" {
			patterns = append(patterns, strings.ReplaceAll(regexp.QuoteMeta(allow.Exchange), `\*`, ".*"))
		}
	}
	return anyOf(patterns)
}

// pattern returns a pattern that matches exactly these names.
func pattern(names ...string) string {
	patterns := make([]string, len(names))
	for i, name := range names {
		patterns[i] = regexp.QuoteMeta(name)
	}
	return anyOf(patterns)
}

func anyOf(patterns []string) string {
	slices.Sort(patterns)
	switch patterns = slices.Compact(patterns); len(patterns) {
	case 0:
		return "^$"
	case 1:
		return "^" + patterns[0] + "$"
	}
	return "^(" + strings.Join(patterns, "|") + ")$"
}
