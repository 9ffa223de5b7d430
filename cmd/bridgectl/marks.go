package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/twoqueue/twoqueue/bridge"
)

func newMarksCommand(a *app) *cobra.Command {
	return newGroup("marks", "List or set the last version or key that a receiver has handled",
		`A receiver that uses Latest, Ordered or HighWater of package idempotency/versions keeps one mark for each
entity or source: the version or the key that was handled last. A mark that is far too high
makes the receiver ignore all later messages.

The inbox is in the database of BRIDGE_INBOX_URL (default: BRIDGE_DATABASE_URL).`,
		newMarksList(a), newMarksReset(a))
}

func newMarksList(a *app) *cobra.Command {
	var consumers []string
	var after string
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List marks in the order of their names",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case limit < 1:
				return misused("--limit: must be positive")
			case after != "" && len(consumers) != 1:
				return misused("--after: needs one --consumer")
			}
			db, err := a.inbox(cmd.Context())
			if err != nil {
				return err
			}
			if consumers, err = db.consumers(cmd.Context(), consumers, markTable); err != nil {
				return err
			}
			list := &markList{Marks: []mark{}}
			for _, consumer := range consumers {
				if err := db.listMarks(cmd.Context(), list, consumer, after, limit); err != nil {
					return fmt.Errorf("list marks: %w", err)
				}
			}
			return a.print(list)
		},
	}
	cmd.Flags().StringArrayVar(&consumers, "consumer", nil, "only this consumer (may be repeated; default: all in the inbox)")
	cmd.Flags().StringVar(&after, "after", "", "start after this name")
	cmd.Flags().IntVar(&limit, "limit", 100, "how many marks of a consumer at most")
	return cmd
}

// listMarks adds up to limit marks of a consumer to a list, in the order of the primary key.
func (d *inboxDatabase) listMarks(ctx context.Context, list *markList, consumer, after string, limit int) (err error) {
	rows, err := d.QueryContext(ctx, d.In(d.Rebind(`SELECT name, mark FROM `+markTable+` WHERE consumer = ? AND name > ? ORDER BY name`)),
		nameArgument(d.DB, consumer), nameArgument(d.DB, after))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for n := 0; rows.Next(); n++ {
		if n == limit {
			list.Limited = true
			return nil
		}
		var name, text []byte
		if err := rows.Scan(&name, &text); err != nil {
			return err
		}
		list.Marks = append(list.Marks, mark{consumer, string(name), string(text)})
	}
	return rows.Err()
}

// A mark is the last version of an entity, or the last key of a source.
type mark struct {
	Consumer string `json:"consumer"`
	Name     string `json:"name"`
	Mark     string `json:"mark"`
}

// markList is the answer of marks list.
type markList struct {
	Marks   []mark `json:"marks"`
	Limited bool   `json:"limited"` // there may be more
}

func (l *markList) write(p *page) {
	p.list([]string{"CONSUMER", "NAME", "MARK"}, rowsOf(l.Marks, func(m mark) []string {
		return []string{m.Consumer, m.Name, m.Mark}
	}))
	more := ""
	if l.Limited {
		more = "; there are more (--limit, --after)"
	}
	p.line("%s%s", count(len(l.Marks), "mark"), more)
}

func newMarksReset(a *app) *cobra.Command {
	r, c, patience := new(markReset), new(agree), new(patienceFlag)
	var force bool
	cmd := &cobra.Command{
		Use:   "reset NAME",
		Short: "Set the mark of an entity or a source",
		Long: `Sets the version or the key that was handled last: the receiver handles the next higher one. Messages
that were acked as stale or as duplicates meanwhile are not delivered again: let the sender send them
again. With --to -1 any version of an entity counts as new.

The command waits for a worker that is handling a message of the entity (--wait), and prints the
mark that this worker has left. Without --force it refuses a name without a mark and a mark of
another form (a key instead of a version, a key of another length). It always refuses an entity
with kept events: use gaps skip.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Name, r.DryRun = args[0], c.dry
			switch {
			case r.Consumer == "":
				return misused("--consumer: is not given")
			case r.After == "" || len(r.After) > 255:
				return misused("--to: must have 1 to 255 bytes")
			}
			if err := c.check("inbox"); err != nil {
				return err
			}
			db, err := a.inbox(cmd.Context())
			if err != nil {
				return err
			}
			err = patience.within(cmd.Context(), func(ctx context.Context) error { return r.do(ctx, db, force) })
			if err != nil {
				return fmt.Errorf("reset mark of %q: %w", r.Name, err)
			}
			return a.print(r)
		},
	}
	c.flags(cmd)
	patience.flags(cmd)
	oneConsumer(cmd, &r.Consumer)
	cmd.Flags().StringVar(&r.After, "to", "", "the version or the key that counts as handled last")
	cmd.Flags().BoolVar(&force, "force", false, "also set a name without a mark, or a mark of another form")
	return cmd
}

// A markReset is the answer of marks reset.
type markReset struct {
	DryRun   bool   `json:"dry_run"`
	Consumer string `json:"consumer"`
	Name     string `json:"name"`
	Before   string `json:"before"` // "" for none
	After    string `json:"after"`
}

// do sets the mark in the transaction that locks it, so a worker of the same entity runs before or
// after it.
func (r *markReset) do(ctx context.Context, db *inboxDatabase, force bool) error {
	err := db.inTx(ctx, func(tx bridge.Tx) (err error) {
		if r.Before, err = db.inbox.LockMark(ctx, tx, r.Consumer, r.Name); err != nil {
			return err
		}
		kept, err := db.inbox.CountKept(ctx, tx, r.Consumer, r.Name)
		switch {
		case err != nil:
			return err
		case kept > 0:
			return fmt.Errorf("it has %s: use gaps skip", count(kept, "kept event"))
		case r.Before == "" && !force:
			return errors.New("consumer and name have no mark; marks list shows the marks, --force creates one")
		case !force && !sameForm(r.Before, r.After):
			return fmt.Errorf("the mark is %q, and %q has another form; --force sets it anyway", r.Before, r.After)
		}
		if err := db.inbox.SetMark(ctx, tx, r.Consumer, r.Name, r.After); err != nil {
			return err
		}
		if r.DryRun {
			return errRolledBack
		}
		return nil
	})
	if errors.Is(err, errRolledBack) {
		return nil
	}
	return err
}

// sameForm reports whether two marks are both versions, or both keys of one length.
func sameForm(before, after string) bool {
	isVersion := func(text string) bool {
		version, err := strconv.ParseInt(text, 10, 64)
		return err == nil && version >= -1 && strconv.FormatInt(version, 10) == text
	}
	forms := []bool{isVersion(before), isVersion(after)}
	return !slices.Contains(forms, false) || forms[0] == forms[1] && len(before) == len(after)
}

func (r *markReset) write(p *page) {
	before := r.Before
	if before == "" {
		before = "none"
	}
	did := "reset"
	if r.DryRun {
		did = "would be reset"
	}
	p.line("consumer %s, %s: %s from %s to %s", r.Consumer, r.Name, did, before, r.After)
}
