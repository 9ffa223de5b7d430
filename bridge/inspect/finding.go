package inspect

import (
	"context"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A Finding is the answer to one question of a Diagnose.
type Finding struct {
	Check string `json:"check"`          // what was looked at, a few words, the same in every run
	Level Level  `json:"level"`          // how it stands
	Text  string `json:"text"`           // what was found
	Mend  string `json:"mend,omitempty"` // what to do about it; empty if it is well
}

// A Level says how a Finding stands.
type Level string

// The levels of a Finding.
const (
	OK      Level = "ok"
	Warning Level = "warning" // it works, and costs something or may fail later
	Error   Level = "error"   // messages can be lost, or nothing works
	Unknown Level = "unknown" // the login may not look
)

// A Diagnoser is a Ledger that examines the preconditions of its database.
type Diagnoser interface {
	driver.Ledger

	// Diagnose answers every question that the comment of the database's package asks
	// of this kind of database, each once; a check that has nothing to say may be
	// missing. It looks with the rights and settings of its login, which should be the
	// verifier's: of a sender's it sees little. It changes nothing, and reads the whole
	// ledger once. It does not make the proof that lookups wait: Prove does. An error
	// means that it could not go on, and the findings so far come with it.
	Diagnose(ctx context.Context) ([]Finding, error)
}
