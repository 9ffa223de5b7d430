package crash_test

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// crashTable has the rows of the table 'Crashes' in package bridge's comment, in its order, each
// with the tests of that crash.
var crashTable = []struct {
	crash string
	tests []string // TEST, or TEST/the name of a row of its cases
}{
	{"record, before publish", []string{"TestASenderIsKilled/after the record: nothing is sent", "TestASenderKilledBeforeItsCommitHasCarriedNothing"}},
	{"publish or confirm, before COMMIT", []string{
		"TestASenderIsKilled/between the early publish and the other statement: it has rolled back",
		"TestASenderIsKilled/before the confirm: it has rolled back",
		"TestASenderIsKilled/between confirm and COMMIT: it has rolled back",
		"TestManyMessagesOfAKilledSenderAreDropped"}},
	{"COMMIT", []string{
		"TestASenderIsKilled/before the answer to its COMMIT: it has committed", "TestASenderIsKilled/after the commit",
		"TestACarriedMessageCommittedBeforeItsSenderWasKilledIsForwarded"}},
	{"COMMIT of a carried message whose staged copy was lost, or never sent", []string{
		"TestACarriedMessageWhosePublicationWasLostWithItsSenderIsForwarded"}},
	{"COMMIT of a delayed message", []string{"TestASenderKilledAtADelayedMessageHasSentItIfItHasCommitted"}},
	{"Cancel of a message, before COMMIT", []string{ // a phase of the conformance suite
		"testCancelOpen/an uncommitted cancel hides its row from claims, and the row is back when its connection ends"}},
	{"verifier: the claim of a carried message, before its staging is confirmed", []string{
		"TestAVerifierKilledBetweenClaimAndStagingLosesNothing", "TestAVerifierKilledWhileItStagesDelayedMessagesLosesNothing"}},
	{"verifier: the confirm of that staging", []string{"TestAVerifierKilledAfterStagingAgainLosesNothing"}},
	{"verifier: the lookup", []string{
		"TestAVerifierIsKilledWith/a message that it has looked up: it is looked up again",
		"TestAMessageSettledByAKilledVerifierIsLookedUpAgain", "TestAGroupOfAVerifierKilledBeforeItsLastMemberEndsDeliversEachMemberOnce"}},
	{"verifier: publish to the target", []string{"TestAVerifierKilledBetweenPublishAndConfirmDeliversTwiceWithTheSameID"}},
	{"verifier: its confirm, before DELETE", []string{
		"TestAVerifierIsKilledWith/a message between confirm and DELETE: it comes twice, with the same ID",
		"TestAVerifierIsKilledWith/a group between confirm and DELETE: each member comes twice",
		"TestAVerifierKilledBetweenConfirmAndDeleteOfACarriedRowLosesNothing"}},
	{"verifier: DELETE, before the ack", []string{
		"TestAVerifierIsKilledWith/a message between DELETE and ack: it comes once",
		"TestAVerifierIsKilledWith/a group between DELETE and ack: each member comes once"}},
	{"verifier: the ack, before DELETE", []string{"TestAVerifierKilledBetweenAckAndDeleteLeavesAHarmlessRow"}},
	{"database: a DELETE that has not reached the disk", []string{
		"TestAKilledPostgreSQLLosesAndInventsNothing", "TestAKilledMariaDBLosesAndInventsNothing"}},
	{"receiver: its commit, before its ack", []string{"TestAReceiverKilledBetweenAnyTwoStepsLosesAndRepeatsNothing"}},
}

// besideTheTable are the tests of crashes at other moments.
var besideTheTable = []string{
	"TestAVerifierKilledWhileSettingAsideLosesNothing", "TestAVerifierKilledWhileSettingAGroupAsideLosesNothing",
	"TestTheCrashTableHasExactlyTheRowsOfPackageBridge",
}

// Each row has a test, and each test a row.
func TestTheCrashTableHasExactlyTheRowsOfPackageBridge(t *testing.T) {
	here := read(t, "*_test.go")
	all := here + read(t, "../idempotency/crash_test.go") + read(t, "../../bridge/ledgertest/carried.go")
	named := slices.Clone(besideTheTable)
	documented := documentedCrashes(t)
	for _, row := range crashTable {
		rest, ok := strings.CutPrefix(documented, row.crash+" ")
		if !ok {
			t.Fatalf("the table of package bridge continues with %.80q, and not with the row %q", documented, row.crash)
		}
		documented = rest
		for _, test := range row.tests {
			name, sub, _ := strings.Cut(test, "/")
			named = append(named, name)
			if !strings.Contains(all, "func "+name+"(t *testing.T") || !strings.Contains(all, `"`+sub) {
				t.Errorf("there is no test %q for the row %q", test, row.crash)
			}
		}
	}
	if documented != "" {
		t.Errorf("no test has these rows of package bridge's table: %q", documented)
	}
	for _, test := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing`).FindAllStringSubmatch(here, -1) {
		if name := test[1]; name != "TestMain" && !slices.Contains(named, name) {
			t.Errorf("%s tests no row of the table", name)
		}
	}
}

// documentedCrashes returns the words in the first column of package bridge's table.
func documentedCrashes(t *testing.T) (words string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../bridge/doc.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(file.Doc.Text(), "\tthe process dies after")
	table, _, _ = strings.Cut(table, "\n# ")
	for line := range strings.Lines(table) {
		row, ok := strings.CutPrefix(line, "\t")
		if first, _, _ := strings.Cut(strings.TrimSuffix(row, "\n"), "  "); ok && first != "" {
			words += first + " "
		}
	}
	return words
}

// read returns the text of files.
func read(t *testing.T, pattern string) (text string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no file %s: %v", pattern, err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text += string(content)
	}
	return text
}
