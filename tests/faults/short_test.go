package faults

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/faults/world"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/verifier"
)

var (
	seedFlag     = flag.Uint64("faults.seed", 0, "the seed of the first plan; 0 draws one")
	stepsFlag    = flag.Int("faults.steps", 20, "the number of steps of a plan")
	databaseFlag = flag.String("faults.database", "postgres", "the database of TestLong and TestShort: postgres, or mysql for a MariaDB or MySQL; TestShortRunUnderLocal runs on the other")
	diariesFlag  = flag.String("faults.diaries", "", "a folder that keeps the diaries")
	forFlag      = flag.Duration("faults.for", 0, "how long TestLong goes on with new seeds")
)

func TestMain(m *testing.M) { world.Main(m) }

func firstSeed() uint64 {
	if *seedFlag != 0 {
		return *seedFlag
	}
	return rand.Uint64N(1_000_000)
}

// One plan has every kind of fault once. Every other seed adds messages with order keys, and none
// of these is out of order either.
func TestShortRunUnderFaultsLosesAndInventsNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("kills servers")
	}
	t.Parallel()
	seed := firstSeed()
	run(t, *databaseFlag, seed, traffic{workers: 3, pause: 200 * time.Millisecond, keys: 8 * int(seed%2), steps: *stepsFlag})
}

// forms returns each sender's form of carrying. The seed decides with which form the list begins.
func forms(seed uint64) []sender.Carry {
	all := []sender.Carry{sender.CarrySmall, sender.CarryNever, sender.CarryOnOutage, sender.CarryAlways}
	first := seed % uint64(len(all))
	return slices.Concat(all[first:], all[:first])
}

// traffic describes the transactions of each sender.
type traffic struct {
	workers int
	pause   time.Duration // the longest pause of a worker between two transactions
	keys    int           // number of order keys; 0: there are none
	steps   int           // number of the plan's steps
	local   bool          // the plan has local faults only
}

// run carries out one plan on its own servers.
func run(t *testing.T, kind string, seed uint64, traffic traffic) (world.Counts, world.Totals) {
	t.Helper()
	began := time.Now()
	diary := world.NewDiary(t, *diariesFlag)
	broker := servertest.StartRabbitMQ(t, &servers.RabbitMQOptions{Log: diary.Page("RabbitMQ")})
	database, shop, post := world.StartDatabase(t, kind, diary)
	config := world.Config{
		Diary:    diary,
		AMQP:     broker.URL(),
		Shop:     shop,
		Post:     post,
		Topology: bridge.Topology{Queue: "staging", Classic: seed%3 == 0},
		Keys:     traffic.keys,
		Pause:    traffic.pause,
		Carry:    forms(seed),
		Delayed:  true,
	}
	if traffic.keys > 0 {
		config.Topology.OrderedShards = 3
	}
	w := world.New(t, config)
	for i := range 3 {
		w.AddSender(traffic.workers, seed+uint64(i))
	}
	for range 3 {
		w.AddVerifier(func(o *verifier.Options) { o.HoldKeys = traffic.keys > 0 })
	}
	for range 2 {
		w.AddReceiver()
	}
	processes, kinds := len(w.Processes()), world.FaultKinds
	if traffic.local {
		processes, kinds = len(w.Senders)+len(w.Verifiers), world.LocalKinds
		w.Must("wait", w.AwaitUp(t.Context()))
	}
	plan := world.NewPlan(seed, traffic.steps, processes, kinds)
	if traffic.keys > 0 {
		for i := range plan.Steps {
			if i%4 == 0 {
				plan.Steps[i].Faults = append(plan.Steps[i].Faults, world.Fault{Kind: world.UnbindOrdered, For: time.Second})
			}
		}
	}
	t.Logf("%v", plan)
	counts, err := w.Carry(t.Context(), plan, world.Servers{RabbitMQ: broker, Database: database})
	if err != nil {
		t.Fatal(err)
	}
	injected := time.Since(began)
	finishErr := w.Finish(t.Context())
	totals, violations, err := w.Judge(t.Context())
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	if finishErr != nil || len(violations) > 0 { // the long output first
		t.Logf("%v\n%s", plan, w.Histories(violations))
	}
	if len(violations) > 0 {
		t.Errorf("seed %d:%s", seed, world.Summary(violations))
	}
	if finishErr != nil {
		t.Errorf("seed %d: finish: %v", seed, finishErr)
	}
	if totals.Committed > 2000 && totals.Delayed == 0 {
		t.Errorf("seed %d: nothing was delayed", seed)
	}
	if totals.Committed == 0 {
		t.Errorf("seed %d: nothing was committed: nothing is shown", seed)
	}
	t.Logf("seed %d: %v", seed, totals.Untouched)
	if len(totals.Untouched.Late) > 0 && traffic.local {
		t.Log(w.HistoriesOf(totals.Untouched.Late))
	}
	t.Logf("seed %d: %v; %v, and %v to the end", seed, totals, injected.Round(time.Second), time.Since(began).Round(time.Second))
	return counts, totals
}
