package main

import (
	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

func newIdentityCommand(a *app) *cobra.Command {
	return newGroup("identity", "Give a copy of a database its own identity",
		`A ledger's identity is a UUID that is created with its tables. Every message carries the
identity of its ledger, and only that ledger judges it.`,
		newIdentityNew(a))
}

func newIdentityNew(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "new",
		Short: "Give the ledger in this database, a copy, a new identity",
		Long: `A clone or a restored dump has the original's identity and its carried and delayed messages.
This command sets a new identity and deletes these messages in one transaction, because the
original sends them. Run it on the copy, before any sender or verifier connects to it. On the
original it would lose these messages.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !yes {
				return misused("this permanently deletes the messages that wait in this database: confirm with --yes if it is a copy")
			}
			db, err := a.database(cmd.Context())
			if err != nil {
				return err
			}
			var out newIdentity
			if out.Identity, out.Deleted, err = db.NewIdentity(cmd.Context()); err != nil {
				return about("BRIDGE_DATABASE_URL", err)
			}
			return a.print(out)
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "confirm the change")
	return cmd
}

// newIdentity is the answer of identity new.
type newIdentity struct {
	Identity uuid.UUID `json:"identity"`
	Deleted  int64     `json:"deleted"` // carried messages
}

func (n newIdentity) write(p *page) {
	p.line("The identity is %s. %s deleted.", n.Identity, count(int(n.Deleted), "message"))
}
