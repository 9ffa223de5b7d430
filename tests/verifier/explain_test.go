package verifier_test

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

func TestTheLogNamesTheTransactionThatHoldsAMessageUp(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	ledger, err := postgres.Open(t.Context(), s.DB)
	if err != nil {
		t.Fatal(err)
	}
	queue := s.Queue("target", nil)
	tx, ids := s.Begin(stage.To(queue, "x"))
	var pid string
	if err := tx.QueryRowContext(t.Context(), `SELECT pg_backend_pid()::text, set_config('application_name', 'slow shop', false)`).Scan(&pid, new(string)); err != nil {
		t.Fatal(err)
	}
	other, _ := s.Begin(stage.To(queue, "y"))
	var log servertest.Log
	s.Verify(verifier.Options{Watcher: postgres.Inspect(ledger), ExplainAfter: 200 * time.Millisecond, Patience: stage.Patience, Logger: slog.New(slog.NewJSONHandler(&log, nil))})
	const words = "a message waits for an open transaction"
	named := func(session string) []string { return log.With(`"session":"` + session + `"`) }
	s.Eventually("the first transaction is named twice", func() bool { return len(named(pid)) >= 2 })
	s.Eventually("the other is named too", func() bool { return len(log.With(words)) > len(named(pid)) })

	var got struct {
		Message string `json:"msg"`
		ID      string `json:"message_id"`
		Program string `json:"program"`
		Waiting int    `json:"waiting"`
		Login   string `json:"login"`
	}
	line := named(pid)[0]
	if err := json.Unmarshal([]byte(line), &got); err != nil {
		t.Fatal(err)
	}
	if got.Message != words || got.ID != ids[0].String() || got.Program != "slow shop" || got.Login != "postgres" || got.Waiting < 1 {
		t.Errorf("the log says %s", line)
	}
	for _, tx := range []interface{ Commit() error }{tx, other} {
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	s.Receive(queue, 2)
	const over = "a message no longer waits for an open transaction"
	s.Eventually("the end of each is logged", func() bool { return len(log.With(over)) == 2 })
	if said := log.With(over); !strings.Contains(strings.Join(said, "\n"), `"session":"`+pid+`"`) {
		t.Errorf("the log says %s", said)
	}
}
