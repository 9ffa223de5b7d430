package world

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// A FaultKind is a kind of fault.
type FaultKind string

// The kinds of faults.
const (
	KillProcess    FaultKind = "kill a process"
	FreezeProcess  FaultKind = "freeze a process"
	KillBroker     FaultKind = "kill the broker"
	KillDatabase   FaultKind = "kill the database"
	CutLink        FaultKind = "cut a link"
	TearLink       FaultKind = "cut a link in mid-frame"
	LoseLink       FaultKind = "half-open link"
	SlowLink       FaultKind = "slow link"
	MemoryAlarm    FaultKind = "memory alarm"
	DeleteStaging  FaultKind = "delete the staging queue"
	DeleteTarget   FaultKind = "delete a target queue"
	KillSessions   FaultKind = "kill database sessions"
	LockLedger     FaultKind = "lock the ledger"
	StrayMessages  FaultKind = "stray messages"
	FewConnections FaultKind = "no further connections"
	FullBeside     FaultKind = "a full queue beside the exchange's own"
	LockRows       FaultKind = "lock rows of the ledger"
	VanishHost     FaultKind = "the host of a process vanishes"

	UnreadableMessages    FaultKind = "messages that no client can read"
	UnpublishableMessages FaultKind = "messages that no client can publish again"

	// These are in LocalKinds only.
	SilentTarget     FaultKind = "a target queue that does not answer"
	SlowTransactions FaultKind = "slow transactions"

	// UnbindOrdered needs a world with order keys. NewPlan draws it for no plan.
	UnbindOrdered FaultKind = "take the binding of the ordered target away"
)

// FaultKinds are the kinds of a usual plan. Most of them touch all messages.
var FaultKinds = []FaultKind{KillProcess, FreezeProcess, KillBroker, KillDatabase, CutLink, TearLink, LoseLink, SlowLink,
	MemoryAlarm, DeleteStaging, DeleteTarget, KillSessions, LockLedger, StrayMessages, FewConnections, FullBeside,
	LockRows, VanishHost, UnreadableMessages, UnpublishableMessages}

// LocalKinds are the kinds of a local plan: each touches a target, rows, some messages, or one
// process among others. The processes must not include receivers, whose faults are not local.
var LocalKinds = []FaultKind{KillProcess, FreezeProcess, CutLink, LoseLink, SlowLink, VanishHost, DeleteTarget, SilentTarget,
	FullBeside, LockRows, StrayMessages, UnreadableMessages, UnpublishableMessages, FewConnections, SlowTransactions}

// A Fault is one fault and its duration.
type Fault struct {
	Kind    FaultKind
	Process int  // the number of a process
	Broker  bool // the link to the broker, not to the database
	Target  int  // the number of a target
	For     time.Duration
}

func (f Fault) String() string {
	var what string
	switch f.Kind {
	case KillProcess, FreezeProcess, VanishHost:
		what = fmt.Sprintf(" %d", f.Process)
	case CutLink, TearLink, LoseLink, SlowLink:
		what = fmt.Sprintf(" of process %d to the %s", f.Process, map[bool]string{true: "broker", false: "database"}[f.Broker])
	case DeleteTarget:
		what = fmt.Sprintf(" %d", f.Target)
	}
	if f.For > 0 {
		what += fmt.Sprintf(" for %v", f.For)
	}
	return string(f.Kind) + what
}

// touches names the resource that a fault needs exclusively.
func (f Fault) touches() string {
	switch f.Kind {
	case KillProcess, FreezeProcess, VanishHost:
		return fmt.Sprint("process", f.Process)
	case CutLink, TearLink, LoseLink, SlowLink:
		return fmt.Sprint("link", f.Process, f.Broker)
	case KillDatabase, KillSessions, LockLedger, LockRows:
		return "database"
	case SlowTransactions:
		return "transactions"
	}
	return "broker"
}

// A Step is one fault, or two at the same time, and a rest after them.
type Step struct {
	Faults []Fault
	Rest   time.Duration
}

// A Plan is a sequence of faults. The seed determines all of it.
type Plan struct {
	Seed  uint64
	Steps []Step
}

// NewPlan draws a plan of faults of these kinds for the first processes of World.Processes. Every
// kind of fault occurs once before any occurs again.
func NewPlan(seed uint64, steps, processes int, kinds []FaultKind) Plan {
	random := rand.New(rand.NewPCG(seed, 0))
	var deck []FaultKind
	draw := func() Fault {
		if len(deck) == 0 {
			deck = append(deck, kinds...)
			random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		kind := deck[0]
		deck = deck[1:]
		return fault(random, kind, processes)
	}
	plan := Plan{Seed: seed}
	for range steps {
		step := Step{Faults: []Fault{draw()}, Rest: milliseconds(random, 200, 1500)}
		if random.IntN(3) == 0 {
			second := fault(random, kinds[random.IntN(len(kinds))], processes)
			if second.touches() != step.Faults[0].touches() {
				step.Faults = append(step.Faults, second)
			}
		}
		plan.Steps = append(plan.Steps, step)
	}
	return plan
}

func fault(random *rand.Rand, kind FaultKind, processes int) Fault {
	f := Fault{Kind: kind}
	switch kind {
	case KillProcess:
		f.Process = random.IntN(processes)
	case FreezeProcess:
		f.Process, f.For = random.IntN(processes), milliseconds(random, 300, 4000)
		if random.IntN(8) == 0 { // longer than a heartbeat
			f.For = milliseconds(random, 10_000, 25_000)
		}
	case CutLink, TearLink:
		f.Process, f.Broker = random.IntN(processes), random.IntN(2) == 0
	case LoseLink:
		f.Process, f.Broker, f.For = random.IntN(processes), random.IntN(2) == 0, milliseconds(random, 500, 5000)
	case SlowLink:
		f.Process, f.Broker, f.For = random.IntN(processes), random.IntN(2) == 0, milliseconds(random, 1000, 4000)
	case MemoryAlarm:
		f.For = milliseconds(random, 200, 3000)
	case KillBroker, KillDatabase: // how long the server is away, beside its start
		f.For = milliseconds(random, 0, 1500)
	case DeleteStaging:
		f.For = milliseconds(random, 0, 300)
	case DeleteTarget:
		f.Target, f.For = random.IntN(len(targetQueues())), milliseconds(random, 200, 2000)
	case LockLedger:
		f.For = milliseconds(random, 300, 2000)
	case FewConnections, FullBeside:
		f.For = milliseconds(random, 500, 4000)
	case LockRows, SlowTransactions, SilentTarget:
		f.For = milliseconds(random, 1000, 5000)
	case VanishHost:
		f.Process, f.For = random.IntN(processes), milliseconds(random, 1000, 5000)
	}
	return f
}

func milliseconds(random *rand.Rand, from, to int) time.Duration {
	return time.Duration(from+random.IntN(to-from)) * time.Millisecond
}

func (p Plan) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "seed %d:", p.Seed)
	for i, step := range p.Steps {
		fmt.Fprintf(&text, "\n  %2d.", i+1)
		for j, f := range step.Faults {
			if j > 0 {
				text.WriteString(", and")
			}
			fmt.Fprintf(&text, " %s", f)
		}
		fmt.Fprintf(&text, "; then %v", step.Rest)
	}
	return text.String()
}
