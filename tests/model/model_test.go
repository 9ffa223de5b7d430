package model

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var longFlag = flag.Bool("model.long", false, "search with more faults than any rule is there for")

// more returns the number of faults of a search. It is always enough to break every rule that this
// configuration covers (see broken), and higher with -model.long.
func more(usual, long int) int {
	if *longFlag {
		return long
	}
	return usual
}

// The configurations: each is the whole protocol, with further events.
var (
	plain              = search{file: "protocol.pml"}
	foreign            = search{file: "protocol.pml", defines: []string{"-DFOREIGN"}}
	receivers          = search{file: "protocol.pml", defines: []string{"-DRECEIVERS=2"}}
	group              = search{file: "protocol.pml", defines: []string{"-DGROUP"}}
	groupOneVerifier   = search{file: "protocol.pml", defines: []string{"-DGROUP", "-DVERIFIERS=1"}}
	sweep              = search{file: "protocol.pml", defines: []string{"-DSWEEP"}}
	failover           = search{file: "protocol.pml", defines: []string{"-DFAILOVER"}}
	carried            = search{file: "protocol.pml", defines: []string{"-DCARRIED"}}
	carriedOneVerifier = carried.with(0, "-DVERIFIERS=1")
	goneBy             = search{file: "gone_by.pml"}
	twoCopies          = search{file: "copy.pml"}
	copied             = search{file: "protocol.pml", defines: []string{"-DCOPY", "-DVERIFIERS=1"}}
	slow               = search{file: "protocol.pml", defines: []string{"-DSLOW"}}
	tags               = search{file: "tags.pml"}
	ordered            = search{file: "ordered.pml"}
)

// few shortens searches of gone_by.pml that would take long.
var few = []string{"-DCOMES_AGAIN=0", "-DSPARE_MARKERS=1"}

// with returns the search with that number of faults, and further flags.
func (s search) with(faults int, defines ...string) search {
	s.faults, s.defines = faults, slices.Concat(s.defines, defines)
	return s
}

func TestEveryRunKeepsThePromise(t *testing.T) {
	for _, c := range []struct {
		name   string
		search search
	}{
		{"one message, own or foreign", foreign.with(more(3, 4))},
		{"two receivers", receivers.with(more(2, 3))},
		{"two transactions in one group", group.with(more(0, 1))},
		{"two transactions in one group, one verifier", groupOneVerifier.with(more(1, 2))},
		{"orphan sweep", sweep.with(more(1, 2))},
		{"carried", carried.with(more(0, 1))},
		{"carried, staged again only if no copy is left", carried.with(1, "-DNEEDLESS=0")},
		{"carried, one verifier", carriedOneVerifier.with(2)},
		{"carried, one verifier, orphan sweep", carriedOneVerifier.with(more(1, 2), "-DNEEDLESS=0", "-DSWEEP")},
		{"staged again only if the copy has gone by", goneBy.with(0)},
		{"staged again only if the copy has gone by, publications are lost", goneBy.with(more(1, 2), few...)},
		{"failover to a server that does not wait", failover.with(more(1, 2))},
		{"verifier on a copy, or on an old primary", copied.with(0)},
		{"carried, two verifiers on a database and its copy", twoCopies.with(more(1, 2))},
		{"carried, a database and its copy, no traffic", twoCopies.with(more(1, 2), "-DIDLE")},
		{"carried, a copy with an identity of its own", twoCopies.with(more(1, 2), "-DNEW_IDENTITY")},
		{"a slow transaction beside another", slow.with(0)},
		{"delivery tags, reconnects", tags.with(4)},
		{"two messages of one key, in order", ordered.with(more(3, 4))},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !*longFlag { // with -model.long each may take all of its memory
				t.Parallel()
			}
			c.search.compile = []string{"-O0", "-DSAFETY"} // it runs for less time than -O1 takes to compile
			c.search.run = []string{fewStates}
			if *longFlag {
				c.search.compile[0], c.search.run = "-O1", nil
			}
			begin := time.Now()
			r := c.search.do(t)
			if r.errors != 0 {
				t.Fatalf("a run breaks the promise:\n%s", strings.Join(r.trail, "\n"))
			}
			t.Logf("complete: %s, %d faults: %d states, %v", c.search.name(), c.search.faults, r.states, time.Since(begin).Round(100*time.Millisecond))
		})
	}
}

// Assertions at the end of a run cover every run only if every run ends.
func TestEveryRunEnds(t *testing.T) {
	for _, c := range []struct {
		search search
		run    []string
	}{
		{foreign.with(2), nil},
		{carriedOneVerifier.with(1), nil},
		// Markers continue until both verifiers have looked, so none may wait for ever.
		{goneBy.with(1, few...), []string{"-f"}},
	} {
		s := c.search
		s.compile, s.run = []string{"-O0", "-DNP", "-DNFAIR=4"}, slices.Concat([]string{"-l", fewStates}, c.run)
		if r := s.do(t); r.errors != 0 {
			t.Fatalf("%s: a run goes on for ever:\n%s", s.name(), strings.Join(r.trail, "\n"))
		}
	}
}

// Rule 9, beyond the absence of deadlocks: with fair scheduling, a committed message arrives while
// another's transaction stays open.
func TestSlowTransactionDelaysItsOwnMessageOnly(t *testing.T) {
	s := slow.with(0, "-DIN_TIME")
	s.compile, s.run = []string{"-DNFAIR=3"}, []string{"-a", "-f"}
	if r := s.do(t); r.errors != 0 {
		t.Fatalf("B waits for ever:\n%s", strings.Join(r.trail, "\n"))
	}
}

const (
	lost  = "was committed and is lost"
	twice = "took effect twice"
	stuck = "is left in"
	early = "has overtaken"
	spare = "a copy is staged although one is left"
	alien = "the copy sends A"
)

type breach struct {
	rule   string
	search search
	says   string
}

// broken has the consequence of breaking each rule of rules.pml, with the fewest faults that are
// needed.
var broken = []breach{
	{"RULE_1_RECORD_BEFORE_PUBLISH", plain.with(0), lost},
	{"RULE_2_COMMIT_AFTER_CONFIRM", plain.with(1), lost},
	{"RULE_2_RETURNED_IS_AN_ERROR", plain.with(1), lost},
	{"RULE_3_MISS_SAYS_NOTHING", plain.with(0), lost},
	{"RULE_3_TIMEOUT_SAYS_NOTHING", plain.with(1), lost},
	{"RULE_4_ACK_AFTER_CONFIRM", plain.with(1), lost},
	{"RULE_4_DELETE_AFTER_CONFIRM", plain.with(1), lost},
	{"RULE_4_RETURNED_IS_NOT_FORWARDED", plain.with(1), lost},
	{"RULE_5_PROOF", failover.with(0), lost},
	{"RULE_6_OWN_LEDGER", foreign.with(0), lost},
	{"RULE_6_EVIDENCE", copied.with(0), lost},
	{"RULE_6_EVIDENCE_IS_NEW", copied.with(0), lost},
	{"RULE_6_ONE_SERVER", copied.with(0), lost},
	{"RULE_7_TAGS_DIE_WITH_THE_CHANNEL", tags.with(2), lost},
	{"RULE_7_NO_ACK_OVER_A_GAP", tags.with(1), lost},
	{"RULE_8_DEAD_LETTER_CONFIRMED", foreign.with(1), lost},
	{"RULE_9_WAITING_IS_BOUNDED", slow.with(0), stuck},
	{"RULE_9_SET_ASIDE_CONFIRMED", plain.with(2), lost},
	{"GROUP_ACK_AFTER_THE_LAST", groupOneVerifier.with(1), lost},
	{"GROUP_EACH_ITS_OWN_OUTCOME", groupOneVerifier.with(0), lost},
	{"SWEEP_WATERMARK_FIRST", sweep.with(0), lost},
	{"SWEEP_WATERMARK_DECIDES", sweep.with(0), lost},
	{"SWEEP_WATERMARK_READ_AFTER_SETTLE", sweep.with(0), lost},
	{"SWEEP_STAMP_BEFORE_RECORD", sweep.with(0), lost},
	{"RULE_4_DELETE_AFTER_CONFIRM", carriedOneVerifier.with(1), lost},
	{"RULE_4_RETURNED_IS_NOT_FORWARDED", carriedOneVerifier.with(1), lost},
	{"CARRY_IN_THE_TRANSACTION", carriedOneVerifier.with(1), lost},
	{"CARRY_CLAIM_ENDS", carriedOneVerifier.with(1), lost},
	{"SWEEP_SPARES_CARRIED", carriedOneVerifier.with(0, "-DSWEEP"), lost},
	{"GONE_MARKER", goneBy.with(0, few...), spare},
	{"GONE_IN_QUEUE_ORDER", goneBy.with(0, few...), spare},
	{"GONE_BY_WAITING_QUEUE", goneBy.with(0, few...), spare},
	{"GONE_FIRST_SEEN", goneBy.with(0, few...), spare},
	{"GONE_SEEN_BY_READER", goneBy.with(0, few...), spare},
	{"GONE_PAUSE_BEFORE_LOOK", goneBy.with(0, few...), spare},
	{"GONE_PAUSE_BEFORE_WAITING", goneBy.with(0, few...), spare},
	{"GONE_PAUSE_BEFORE_READING", goneBy.with(0, few...), spare},
	{"GONE_READ_AGAIN", goneBy.with(0, few...), spare},
	{"GONE_TOUCH", goneBy.with(0, few...), spare},
	{"COPY_RESTAGED_IS_NO_EVIDENCE", twoCopies.with(0), lost},
	{"COPY_STAGING_NEEDS_NO_EVIDENCE", twoCopies.with(1, "-DIDLE"), lost},
	{"COPY_NEW_IDENTITY_DELETES_CARRIED", twoCopies.with(0, "-DNEW_IDENTITY"), alien},
	{"ORDER_ONE_AT_A_TIME", ordered.with(0), early},
	{"ORDER_CONFIRMED_BEFORE_THE_NEXT", ordered.with(1), early},
	{"ORDER_ONE_CONSUMER", ordered.with(0), early},
	{"ORDER_NO_NACK", ordered.with(1), early},
	{"ORDER_NEVER_CARRIED", ordered.with(1), early},
	{"RECEIVER_CLAIMS", plain.with(1), twice},
	{"RECEIVER_CLAIM_WITH_EFFECT", plain.with(1), lost},
	{"RECEIVER_ACK_AFTER_COMMIT", plain.with(1), lost},
}

func TestWithoutTheRule(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles many models")
	}
	for _, configuration := range configurations(broken) {
		t.Run(configuration[0].search.name(), func(t *testing.T) {
			t.Parallel()
			// Breadth-first search: the trail is one of the shortest.
			s := configuration[0].search
			for _, c := range configuration {
				s.faults = max(s.faults, c.search.faults)
			}
			s.compile, s.run = []string{"-O0", "-DSAFETY", "-DBFS"}, []string{fewStates}
			program := s.build(t, switchable)
			for _, c := range configuration {
				t.Run(c.rule, func(t *testing.T) {
					r := s.check(t, program, "OFF="+c.rule, fmt.Sprintf("SPARED=%d", s.faults-c.search.faults))
					if r.errors == 0 {
						t.Fatalf("nothing breaks in %d states; either the rule is not needed, or the model does not know why", r.states)
					}
					trail := strings.Join(r.trail, "\n")
					if !strings.Contains(trail, "BROKEN") || !strings.Contains(trail, c.says) {
						t.Fatalf("breaks, but not as %q:\n%s", c.says, trail)
					}
					t.Logf("found among %d states:\n%s", r.states, trail)
				})
			}
		})
	}
}

// spared has the rules without which a carried message is safe as long as its row carries it: the
// staged copy is then only a hint. A plain message is lost without them (see broken). So tests that
// the code keeps these rules need plain messages. The searches have at least as many faults as the
// loss of a plain message needs.
var spared = []breach{
	{rule: "RULE_1_RECORD_BEFORE_PUBLISH", search: carriedOneVerifier.with(2)},
	{rule: "RULE_3_MISS_SAYS_NOTHING", search: carriedOneVerifier.with(2)},
	{rule: "RULE_3_TIMEOUT_SAYS_NOTHING", search: carriedOneVerifier.with(2)},
	{rule: "RULE_4_ACK_AFTER_CONFIRM", search: carriedOneVerifier.with(2)},
	{rule: "RULE_9_SET_ASIDE_CONFIRMED", search: carriedOneVerifier.with(2)},
	{rule: "CARRY_JOINED_IS_JUDGED", search: carriedOneVerifier.with(2)},
}

func TestCarriedIsSafeWithoutTheRule(t *testing.T) {
	if testing.Short() {
		t.Skip("searches a model several times")
	}
	s := spared[0].search
	s.compile, s.run = []string{"-O1", "-DSAFETY"}, []string{fewStates}
	program := s.build(t, switchable)
	for _, c := range spared {
		t.Run(c.rule, func(t *testing.T) {
			r := s.check(t, program, "OFF="+c.rule, fmt.Sprintf("SPARED=%d", s.faults-c.search.faults))
			if r.errors != 0 {
				t.Fatalf("a run breaks the promise:\n%s", strings.Join(r.trail, "\n"))
			}
			t.Logf("complete: %d faults: %d states", c.search.faults, r.states)
			if strings.HasPrefix(c.rule, "RULE_") && !slices.ContainsFunc(broken, func(b breach) bool { return b.rule == c.rule }) {
				t.Error("a plain message is not known to be lost without the rule")
			}
		})
	}
}

// configurations groups the breaches that one checker can search.
func configurations(all []breach) (groups [][]breach) {
	for _, b := range all {
		i := slices.IndexFunc(groups, func(g []breach) bool { return g[0].search.name() == b.search.name() })
		if i < 0 {
			groups = append(groups, nil)
			i = len(groups) - 1
		}
		groups[i] = append(groups[i], b)
	}
	return groups
}

var ruleIsOn = regexp.MustCompile(`(?m)^#define (\w+) 1$`)

// switchable edits the model so that its checker reads from its environment which rule is off, and
// how many of the faults do not happen.
func switchable(file, text string) string {
	if file != "rules.pml" {
		return text
	}
	var inC strings.Builder // SPIN allows no call in an expression, but allows a macro
	for _, m := range ruleIsOn.FindAllStringSubmatch(text, -1) {
		fmt.Fprintf(&inC, "\\#define on_%s (strcmp(getenv(\"OFF\"), \"%[1]s\") != 0)\n", m[1])
	}
	return `c_decl {
\#include <stdlib.h>
\#include <string.h>
\#define spared atoi(getenv("SPARED"))
` + inC.String() + `}
#define SPARED c_expr { spared }
` + ruleIsOn.ReplaceAllString(text, "#define $1 c_expr { on_$1 }")
}

func TestEveryRuleIsSwitchedOff(t *testing.T) {
	text, err := os.ReadFile("rules.pml")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range ruleIsOn.FindAllStringSubmatch(string(text), -1) {
		if !slices.ContainsFunc(slices.Concat(broken, spared), func(b breach) bool { return b.rule == m[1] }) {
			t.Errorf("no breach shows the consequence of a missing %s", m[1])
		}
	}
}
