package main

import "github.com/spf13/cobra"

// dataCommands make the commands about messages and rows: what is staged, dead,
// parked, orphaned, and what becomes of it.
var dataCommands = []func(*app) *cobra.Command{
	newDeadCommand,
	newOrphansCommand,
	newMessageCommand,
	newParkedCommand,
	newStatusCommand,
}
