package parts

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/verifier"
)

// A Role is the part that a process plays.
type Role string

// The roles.
const (
	Sender   Role = "sender"
	Verifier Role = "verifier"
	Receiver Role = "receiver"
)

// Variable is the environment variable that holds a process's brief.
const Variable = "FAULTS_BRIEF"

// MutantVariable is the environment variable that chooses a mutant in a build that has all mutants.
const MutantVariable = "FAULTS_MUTANT"

// A Brief gives a process its part and its servers.
type Brief struct {
	Role     Role
	Database string // the URL of the sender's and verifiers' database, or of the receiver's
	AMQP     string
	Seed     uint64
	Topology bridge.Topology

	Script  []Transaction // of a sender; without a script it invents transactions until it is ended
	AtOnce  bool          // run the script's transactions concurrently
	Workers int           // number of a sender's workers, each with one transaction at a time
	Pause   time.Duration // the longest pause of a worker after a transaction
	Targets []Target      // of a sender that invents transactions
	Carry   sender.Carry  // of a sender
	Delayed bool          // some of the invented messages are delayed, and some of these are cancelled

	Options verifier.Options // of a verifier

	Queues  []string // of a receiver
	InOrder []string // the queues whose messages it handles one by one
}

// A Target is a target with its weight relative to the others.
type Target struct {
	bridge.Target
	Weight int
	Keys   int // number of order keys of its messages
}

// String returns the target's name in the tables: "exchange/key".
func (t Target) String() string { return TargetName(t.Target) }

// TargetName returns the target's name in the tables.
func TargetName(t bridge.Target) string { return t.Exchange + "/" + t.RoutingKey }

// Main plays the part of the brief in the environment until SIGTERM, then ends
// in good order.
func Main() {
	var b Brief
	if err := json.Unmarshal([]byte(os.Getenv(Variable)), &b); err != nil {
		fmt.Println("read brief:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	note("up")
	play := map[Role]func(context.Context, Brief) error{Sender: send, Verifier: verify, Receiver: receive}[b.Role]
	if err := play(ctx, b); err != nil && ctx.Err() == nil {
		note("ended: %v", err)
		os.Exit(1)
	}
	note("down")
}

var diary sync.Mutex

// note writes a line into the diary.
func note(format string, args ...any) {
	line := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ") + "\n"
	diary.Lock()
	defer diary.Unlock()
	_, _ = os.Stdout.WriteString(line)
}

// logger writes the product's own log into the diary.
func logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// retry calls do until it succeeds or ctx ends. A do that fails must leave nothing open.
func retry(ctx context.Context, what string, do func() error) error {
	for {
		err := do()
		if err == nil || ctx.Err() != nil {
			return err
		}
		note("%s: %v", what, err)
		Rest(ctx, 200*time.Millisecond)
	}
}

// Rest waits for d, or until ctx ends. Use it only for pauses in the traffic or in a plan, never to
// wait for an event.
func Rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// openLedger opens the database with its ledger.
func openLedger(ctx context.Context, b Brief) (db *sql.DB, d Database, l *ledger, err error) {
	if db, d, err = OpenDatabase(b.Database); err != nil {
		return nil, d, nil, err
	}
	err = retry(ctx, "open ledger", func() error {
		opened, err := d.ledger(ctx, db)
		l = &ledger{opened}
		return err
	})
	return db, d, l, err
}

// dialTimeout is short, since a faulty link may swallow a dial.
const dialTimeout = 8 * time.Second

// openBroker dials the broker.
func openBroker(ctx context.Context, b Brief) (broker *bridge.Broker, err error) {
	err = retry(ctx, "dial broker", func() error {
		broker, err = bridge.Dial(ctx, b.AMQP, &bridge.BrokerOptions{Logger: logger(), DialTimeout: dialTimeout})
		return err
	})
	return broker, err
}
