package verifier_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// lines keeps the lines of a log.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(bytes.TrimSpace(p)))
	return len(p), nil
}

func (l *lines) with(words string) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if strings.Contains(line, words) {
			out = append(out, line)
		}
	}
	return out
}

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
	var log lines
	s.Verify(verifier.Options{Watcher: postgres.Inspect(ledger), ExplainAfter: 200 * time.Millisecond, Patience: stage.Patience, Logger: slog.New(slog.NewJSONHandler(&log, nil))})
	const words = "a message waits for an open transaction"
	named := func(session string) []string { return log.with(`"session":"` + session + `"`) }
	s.Eventually("the first transaction is named twice", func() bool { return len(named(pid)) >= 2 })
	s.Eventually("the other is named too", func() bool { return len(log.with(words)) > len(named(pid)) })

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
	s.Eventually("the end of each is logged", func() bool { return len(log.with(over)) == 2 })
	if said := log.with(over); !strings.Contains(strings.Join(said, "\n"), `"session":"`+pid+`"`) {
		t.Errorf("the log says %s", said)
	}
}
