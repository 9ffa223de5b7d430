package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/twoqueue/twoqueue/cmd/internal/environment"
)

const helpHead = `Bridgectl manages a two-queue system: the ledger in the database, the staging queue with
the waiting and dead queues beside it, and the messages on their way.

It reads the verifier's variables, and a few more:

`

const helpTail = `
It needs a verifier's rights, and the rights that README.md lists under 'Rights'.

Files named by ..._FILE variables hold the URL and nothing else. Other variables that
start with BRIDGE_ are the verifier's; bridgectl ignores them.

-version alone prints the build's release, revision and Go version.

Output is a table, or JSON with -o json. Colour is used on a terminal, unless
NO_COLOR is set.

Exit codes:
  0  done; the doctor has found no error (there may be warnings)
  1  failed, or interrupted: one line on standard error says why
  2  a command, a flag or a variable is wrong: one line on standard error names it
  3  the doctor has found an error`

// newRoot returns the root command with all commands below it.
func newRoot(a *app) *cobra.Command {
	a.format = formatTable
	var help strings.Builder
	environment.Help(&help, prefix, new(config), helpHead, helpTail)
	root := &cobra.Command{
		Use:           "bridgectl",
		Short:         "Manage the ledger, the queues and the messages between them",
		Long:          help.String(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	beGroup(root)
	root.PersistentFlags().VarP(&a.format, "output", "o", "the form of the output")
	root.PersistentFlags().StringVar(&a.queue, "queue", "", "the staging queue, instead of BRIDGE_QUEUE")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{string(formatTable), string(formatJSON)}, cobra.ShellCompDirectiveNoFileComp))
	root.AddCommand(newMigrateCommand(a), newTopologyCommand(a), newGrantsCommand(a), newDoctorCommand(a), newStatusCommand(a),
		newMessageCommand(a), newDeadCommand(a), newCarriedCommand(a), newDelayedCommand(a), newOrphansCommand(a), newIdentityCommand(a),
		newPendingCommand(a), newGapsCommand(a), newMarksCommand(a))
	prepare(a, root)
	return root
}

// piecemeal annotates a command that shows the other answers if a server gives none. It calls
// app.answered itself.
const piecemeal = "piecemeal"

// offline annotates a command that contacts no server. Such a command takes URLs without TLS.
const offline = "offline"

// newGroup returns a command that has only subcommands.
func newGroup(use, short, long string, subcommands ...*cobra.Command) *cobra.Command {
	group := &cobra.Command{Use: use, Short: short, Long: long}
	beGroup(group)
	group.AddCommand(subcommands...)
	return group
}

// beGroup makes a command show its help if no subcommand is given, and refuse an unknown one.
// Cobra does so for the root only.
func beGroup(group *cobra.Command) {
	group.Args = cobra.ArbitraryArgs
	group.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		hint := ""
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			hint = "; did you mean " + strings.Join(near, " or ") + "?"
		}
		return misused("%s has no command %q%s (see %s -h)", cmd.CommandPath(), args[0], hint, cmd.CommandPath())
	}
	group.SuggestionsMinimumDistance = 2
}

// prepare makes every command read the environment before it runs. Help and completion read none.
// An error before a command runs is misuse.
func prepare(a *app, cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		prepare(a, sub)
	}
	if cmd.HasSubCommands() || cmd.RunE == nil {
		return
	}
	if cmd.Args == nil {
		cmd.Args = cobra.NoArgs
	}
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	runE := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := a.begin(cmd.Annotations[offline] != ""); err != nil {
			return err
		}
		if cmd.Annotations[piecemeal] != "" {
			return runE(cmd, args)
		}
		return a.answered(cmd.Context(), func(ctx context.Context) error {
			cmd.SetContext(ctx)
			return runE(cmd, args)
		})
	}
}
