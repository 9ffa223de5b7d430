package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/cmd/internal/terminal"
	"github.com/twoqueue/twoqueue/idempotency/pending"
)

// pendingStates are all states of an e-mail in the inbox.
var pendingStates = []pending.State{pending.Started, pending.Doubtful, pending.Ready, pending.Failed}

// A query is one of the subcommands of doubtful.
type query func(ctx context.Context, c *config, stdout, stderr io.Writer) error

// parseDoubtful returns the subcommand that the arguments name.
func parseDoubtful(args []string) (query, error) {
	flags := flag.NewFlagSet("doubtful "+args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	output := "text"
	if args[0] == "list" {
		flags.StringVar(&output, "o", output, "")
	}
	if err := flags.Parse(args[1:]); err != nil {
		return nil, fmt.Errorf("%w; see email-gateway -help", err)
	}
	switch {
	case args[0] == "list" && flags.NArg() == 0 && (output == "text" || output == "json"):
		return func(ctx context.Context, c *config, stdout, stderr io.Writer) error {
			return inRecords(ctx, c, stderr, func(ctx context.Context, r records) error { return r.list(ctx, output == "json", stdout) })
		}, nil
	case args[0] == "list":
		return nil, errors.New("doubtful list takes only -o json; see email-gateway -help")
	case args[0] != "sent" && args[0] != "retry":
		return nil, fmt.Errorf("doubtful %s is not understood; see email-gateway -help", args[0])
	case flags.NArg() != 1:
		return nil, fmt.Errorf("doubtful %s takes one message ID; see email-gateway -help", args[0])
	}
	return func(ctx context.Context, c *config, stdout, stderr io.Writer) error {
		return inRecords(ctx, c, stderr, func(ctx context.Context, r records) error {
			return r.decide(ctx, flags.Arg(0), args[0] == "sent", stdout)
		})
	}, nil
}

// A row is one line of the list.
type row struct {
	ID       string    `json:"id"`
	State    string    `json:"state"`
	Attempts int       `json:"attempts"`
	Since    time.Time `json:"since"`
	To       []string  `json:"to"`
	Error    string    `json:"error"`
}

// records are the database's records of e-mails.
type records struct {
	db       *sql.DB
	effects  *pending.Effects
	statuses *statuses
}

// inRecords calls do with the records of the database. A locked table ends the context of do.
func inRecords(ctx context.Context, c *config, stderr io.Writer, do func(ctx context.Context, r records) error) error {
	db, err := c.Schema.Open(ctx, c.Database.URL)
	if err != nil {
		return err
	}
	defer db.Close()
	return db.Answering(ctx, func(ctx context.Context) error {
		effects, statuses, err := open(ctx, c, db, c.Log.Logger(stderr), nil)
		if err != nil {
			return err
		}
		return do(ctx, records{db.DB.DB, effects, statuses})
	})
}

// list prints the doubtful and the failed e-mails.
func (r records) list(ctx context.Context, asJSON bool, stdout io.Writer) error {
	if _, err := r.effects.Count(ctx, r.db); err != nil { // makes overdue e-mails doubtful
		return err
	}
	rows := []row{}
	for _, state := range []pending.State{pending.Doubtful, pending.Failed} {
		err := r.statuses.eachPending(ctx, state, func(p driver.Pending) { rows = append(rows, newRow(p)) })
		if err != nil {
			return fmt.Errorf("list %s e-mails: %w", state, err)
		}
	}
	for i := range rows {
		var err error
		if rows[i].To, err = r.statuses.recipients(ctx, rows[i].ID); err != nil {
			return err
		}
	}
	if asJSON {
		return terminal.JSON(stdout, rows)
	}
	return write(stdout, rows)
}

func newRow(p driver.Pending) row {
	r := row{ID: p.Key, State: string(p.State), Attempts: p.Attempts, Since: p.Since.UTC(), Error: p.Error}
	if p.Error == "" {
		r.Error = errUnheard.Error()
	}
	if !p.Stored {
		r.Error += "; the message is still in the queue"
	}
	return r
}

func write(stdout io.Writer, rows []row) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintln(stdout, "no e-mail is doubtful")
		return err
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tSTATE\tATTEMPTS\tSINCE\tTO\tERROR")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", terminal.Plain(r.ID), r.State, r.Attempts, r.Since.Format(time.RFC3339),
			terminal.Plain(strings.Join(r.To, ",")), terminal.Plain(r.Error))
	}
	return w.Flush()
}

// decide carries out the operator's decision.
func (r records) decide(ctx context.Context, id string, wasSent bool, stdout io.Writer) error {
	if !wasSent {
		text, err := r.retry(ctx, id)
		if err != nil {
			return err
		}
		fmt.Fprintln(stdout, text)
		return nil
	}
	if err := r.effects.MarkDone(ctx, r.db, id); err != nil {
		return err
	}
	if err := r.statuses.markSent(ctx, id); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "it counts as sent")
	return nil
}

// retry changes the status before the inbox: if the command dies in between, findOut of a running
// gateway releases the e-mail. That gateway may also be faster than this command, and then the inbox
// has no doubtful message any more.
func (r records) retry(ctx context.Context, id string) (text string, err error) {
	released, err := r.statuses.release(ctx, id)
	if err != nil {
		return "", err
	}
	err = r.effects.Retry(ctx, r.db, id)
	if released && (errors.Is(err, pending.ErrNotPending) || errors.Is(err, pending.ErrUnderWay)) {
		return "it is no longer doubtful: a running gateway sends it, or another command has decided", nil
	}
	return "a running gateway sends it", err
}
