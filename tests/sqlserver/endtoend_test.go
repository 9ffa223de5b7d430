package sqlserver_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/tests/tds"
	"github.com/twoqueue/twoqueue/verifier"
)

// The whole way, through RabbitMQ: sender, verifier, target.

func TestCommittedIsForwardedAndRolledBackIsDropped(t *testing.T) {
	t.Parallel()
	testForwardsAndDrops(t, stage.New(t, stage.SQLServer))
}

func TestWhereHintsAreIgnoredTheVerifierJudgesRightToo(t *testing.T) {
	t.Parallel()
	testForwardsAndDrops(t, stage.New(t, babelfish()))
}

func babelfish() stage.Database {
	kind := stage.SQLServer
	kind.URL = func(t testing.TB) string {
		server := servertest.SQLServerStandIn(t, &tds.Options{Babelfish: true})
		return servertest.SQLServerDB(t, server.URL("master"), true)
	}
	return kind
}

// The choice is told once, to the verifier's logger and to no other.
func TestTheVerifiersLoggerSaysThatTheLedgerFellBack(t *testing.T) {
	var global, own bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&global, nil)))
	defer slog.SetDefault(before)
	s := stage.New(t, babelfish())
	s.Verify(verifier.Options{Logger: slog.New(slog.NewTextHandler(&own, nil))}).Stop()
	if said := strings.Count(own.String(), "second way"); said != 1 {
		t.Errorf("the verifier's logger was told %d times, must be once:\n%s", said, own.String())
	}
	if global.Len() > 0 {
		t.Errorf("the global logger was told:\n%s", global.String())
	}
}

// testForwardsAndDrops has some transactions open while the verifier starts.
func testForwardsAndDrops(t *testing.T, s *stage.Stage) {
	queue := s.Queue("target", nil)
	want := make(map[string]bool)
	var end []func() error
	for i := range 20 {
		want[s.Commit(stage.To(queue, fmt.Sprint(i)))[0].String()] = true
		s.RollBack(stage.To(queue, "rolled back"))
		commits, ids := s.Begin(stage.To(queue, "slow"))
		want[ids[0].String()] = true
		rollsBack, _ := s.Begin(stage.To(queue, "rolled back, slowly"))
		end = append(end, commits.Commit, rollsBack.Rollback)
	}
	v := s.Verify(verifier.Options{})
	s.Eventually("those of ended transactions are judged", func() bool {
		return v.Stats().Forwarded == 20 && v.Stats().Dropped == 20
	})
	for _, end := range end {
		must(t, end())
	}
	for _, d := range s.Receive(queue, len(want)) {
		if !want[d.MessageId] {
			t.Errorf("message %s (%s): not committed, or delivered twice", d.MessageId, d.Body)
		}
		delete(want, d.MessageId)
	}
	s.Eventually("the others are dropped", func() bool { return v.Stats().Dropped == 40 })
	v.Stop()
	s.WaitEmpty(s.Topology.Queue)
	if n := s.Depth(queue) + s.Depth(s.Topology.DeadQueue()); n != 0 {
		t.Errorf("%d messages too many", n)
	}
	if n := s.Rows(); n != 0 {
		t.Errorf("%d rows left in the ledger", n)
	}
}

func TestASenderThatDiesBeforeItsCommitHasRolledBack(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.SQLServer)
	queue := s.Queue("target", nil)
	v := s.Verify(verifier.Options{})
	tx, _ := s.Begin(stage.To(queue, "never"))
	var spid int
	must(t, tx.QueryRowContext(t.Context(), "SELECT @@SPID").Scan(&spid))
	s.Eventually("the message is set aside", func() bool { return v.Stats().SetAside == 1 })
	execute(t, s.DB, "KILL "+strconv.Itoa(spid)) // what the server does when the process dies
	s.Eventually("the message is dropped", func() bool { return v.Stats().Dropped == 1 })
	if err := tx.Commit(); err == nil {
		t.Error("the dead can commit")
	}
	v.Stop()
	if n := s.Depth(queue); n != 0 {
		t.Errorf("%d messages at the target", n)
	}
}

// The sender itself does not learn that it has committed.
func TestACommitWhoseAnswerIsLostIsForwarded(t *testing.T) {
	t.Parallel()
	server := servertest.SQLServerStandIn(t, nil)
	kind := stage.SQLServer
	kind.URL = func(t testing.TB) string { return servertest.SQLServerDB(t, server.URL("master"), false) }
	s := stage.New(t, kind)
	queue := s.Queue("target", nil)
	v := s.Verify(verifier.Options{}) // before the fault, which would hit its proof
	tx, ids := s.Begin(stage.To(queue, "lost and found"))
	server.Inject(tds.DropAfterCommit)
	if err := tx.Commit(); err == nil {
		t.Error("the commit has an answer")
	}
	if d := s.Receive(queue, 1)[0]; d.MessageId != ids[0].String() {
		t.Errorf("message %s, must be %s", d.MessageId, ids[0])
	}
	v.Stop()
}
