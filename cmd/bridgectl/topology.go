package main

import (
	"fmt"
	"maps"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/twoqueue/twoqueue/bridge"
)

func newTopologyCommand(a *app) *cobra.Command {
	return newGroup("topology", "Create the queues, or print them",
		`The queues are the staging queue, the waiting queue and the dead queue, the ordered queues if
BRIDGE_ORDERED_SHARDS is set, the audit queue if BRIDGE_AUDIT is set, and the exchange of
BRIDGE_EXCHANGE with its bindings. A verifier declares them when it starts, if its login
has the right. Otherwise an administrator declares them first, with these commands.`,
		newTopologyDeclare(a), newTopologyPrint(a))
}

// definitions has the queues, and the exchange with its bindings, in the form of the files that
// RabbitMQ exports and imports.
type definitions struct {
	Queues    []definition         `json:"queues"`
	Exchanges []exchangeDefinition `json:"exchanges,omitempty"`
	Bindings  []bindingDefinition  `json:"bindings,omitempty"`
}

type exchangeDefinition struct {
	Name       string     `json:"name"`
	Vhost      string     `json:"vhost"`
	Type       string     `json:"type"`
	Durable    bool       `json:"durable"`
	AutoDelete bool       `json:"auto_delete"`
	Internal   bool       `json:"internal"`
	Arguments  amqp.Table `json:"arguments"`
}

type bindingDefinition struct {
	Source          string     `json:"source"`
	Vhost           string     `json:"vhost"`
	Destination     string     `json:"destination"`
	DestinationType string     `json:"destination_type"`
	RoutingKey      string     `json:"routing_key"`
	Arguments       amqp.Table `json:"arguments"`
}

type definition struct {
	Name       string     `json:"name"`
	Vhost      string     `json:"vhost"`
	Durable    bool       `json:"durable"`
	AutoDelete bool       `json:"auto_delete"`
	Arguments  amqp.Table `json:"arguments"`
}

func (a *app) definitions() definitions {
	vhost := "/"
	if brokers, err := bridge.ParseURL(a.config.AMQP.URL); err == nil {
		vhost = brokers[0].Vhost
	}
	var d definitions
	for _, queue := range a.topology().Queues() {
		d.Queues = append(d.Queues, definition{Name: queue.Name, Vhost: vhost, Durable: true, Arguments: queue.Arguments})
	}
	if exchange := a.topology().Exchange; exchange != "" {
		d.Exchanges = []exchangeDefinition{{Name: exchange, Vhost: vhost, Type: amqp.ExchangeDirect, Durable: true, Arguments: amqp.Table{}}}
		for _, queue := range a.topology().BoundQueues() {
			d.Bindings = append(d.Bindings, bindingDefinition{exchange, vhost, queue, "queue", queue, amqp.Table{}})
		}
	}
	return d
}

func (d definitions) write(p *page) {
	rows := make([][]string, 0, len(d.Queues))
	for _, queue := range d.Queues {
		name, vhost := queue.Name, queue.Vhost
		for _, argument := range argumentTexts(queue.Arguments) {
			rows = append(rows, []string{name, vhost, argument})
			name, vhost = "", ""
		}
	}
	p.table([]string{"QUEUE", "VHOST", "ARGUMENTS"}, rows)
	if len(d.Bindings) == 0 {
		return
	}
	p.space()
	p.table([]string{"DIRECT EXCHANGE", "VHOST", "QUEUE", "KEY"}, rowsOf(d.Bindings, func(b bindingDefinition) []string {
		return []string{b.Source, b.Vhost, b.Destination, b.RoutingKey}
	}))
}

// argumentTexts returns a queue's arguments in the order of their names.
func argumentTexts(args amqp.Table) []string {
	all := make([]string, 0, len(args))
	for _, name := range slices.Sorted(maps.Keys(args)) {
		form := "%s = %v"
		if _, ok := args[name].(string); ok {
			form = "%s = %q"
		}
		all = append(all, fmt.Sprintf(form, name, args[name]))
	}
	return all
}

func newTopologyDeclare(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "declare",
		Short: "Create the queues that are missing, and check the arguments of the others",
		Long: `Creates missing queues, the exchange and its bindings. A queue with other arguments is not
changed; the error names the argument. The command does not check policies; the doctor does.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			broker, err := a.broker(cmd.Context())
			if err != nil {
				return err
			}
			if err := a.topology().Declare(cmd.Context(), broker); err != nil {
				return about("BRIDGE_QUEUE", err)
			}
			return a.print(a.definitions())
		},
	}
}

func newTopologyPrint(a *app) *cobra.Command {
	return &cobra.Command{
		Use:         "print",
		Annotations: map[string]string{offline: "true"},
		Short:       "Print the queues, with -o json as definitions that RabbitMQ imports",
		Long: `Prints the queues and contacts no broker. The virtual host comes from
BRIDGE_AMQP_URL (default: "/"). An administrator of the broker can import the output of -o json:

  bridgectl topology print -o json > queues.json
  rabbitmqctl import_definitions queues.json`,
		RunE: func(*cobra.Command, []string) error { return a.print(a.definitions()) },
	}
}
