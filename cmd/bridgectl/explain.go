package main

import (
	"errors"
	"fmt"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/mend"
)

// about puts the variable that names a server before an error of the first contact with
// it.
func about(variable string, err error) error { return fmt.Errorf("%s: %w", variable, err) }

// mends say what to do about an error, where package mend does not.
var mends = []struct {
	err  error
	mend string
}{
	{bridge.ErrLaterSchema, "run the bridgectl of the release that made the tables, or of a later one"},
	{bridge.ErrNoSchema, "name the right database, or create the tables with bridgectl migrate up"},
	{errManagementLogin, "correct its user and password, and give the user the tag monitoring"},
	{errManagementAway, "see that the management plugin runs, and that host and port are right"},
}

// explain puts what to do behind an error.
func explain(err error) error { return mend.With(err, mendOf(err)) }

// mendOf is what to do about an error; empty if nobody knows, or it says it itself.
func mendOf(err error) string {
	if secure := mend.TLS(err); secure != "" {
		return secure
	}
	for _, m := range mends {
		if errors.Is(err, m.err) {
			return m.mend
		}
	}
	if missing(err) {
		return "create the queues with bridgectl topology declare, or name the right ones with BRIDGE_QUEUE"
	}
	_, remedy := mend.Of(err)
	return remedy
}
