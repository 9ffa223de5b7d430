package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/environment"
	"github.com/twoqueue/twoqueue/idempotency/pending"
)

const anID = "01936f5e-7b1c-7cc0-9a3b-0a1b2c3d4e5f"

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func statusesOf(t *testing.T) (*statuses, driver.Inbox) {
	t.Helper()
	return statusesIn(t, "sqlite:"+filepath.Join(t.TempDir(), "statuses.db"))
}

func statusesIn(t *testing.T, address string) (*statuses, driver.Inbox) {
	t.Helper()
	db, err := database.Create(t.Context(), address)
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	must(t, errors.Join(db.MigrateInbox(t.Context()), db.MigrateTables(t.Context(), tables, part)))
	inbox, err := db.Inbox(t.Context())
	must(t, err)
	return newStatuses(db, inbox), inbox
}

func (s *statuses) want(t *testing.T, want status) {
	t.Helper()
	if is, err := s.get(t.Context(), anID); err != nil || is != want {
		t.Fatalf("the status is %q, %v; want %q", is, err, want)
	}
}

// mustBegin begins the run with the number want, as the successor of the run before it.
func (s *statuses) mustBegin(t *testing.T, want int) {
	t.Helper()
	if n, err := s.begin(t.Context(), anID, []string{"ann@example.org"}, want-1); err != nil || n != want {
		t.Fatalf("attempt %d, %v; want %d", n, err, want)
	}
	s.want(t, sending)
}

// If an old run's result counted after a later run has begun, findOut could release an e-mail that is
// being sent. After a dead-lettering the count of attempts starts again.
func TestARunThatIsOverdueCannotSpeakForALaterOne(t *testing.T) {
	for _, now := range []status{refused, failed} {
		s, _ := statusesOf(t)
		for _, speak := range []func(attempt int) error{
			func(attempt int) error { return s.end(t.Context(), anID, attempt, now, errUnheard) },
			func(attempt int) error { return s.giveUp(t.Context(), anID, attempt, now, errUnheard) },
		} {
			s.mustBegin(t, 1)
			s.mustBegin(t, 2)
			must(t, speak(1))
			s.want(t, sending)
			must(t, speak(2))
			s.want(t, now)
		}
	}
}

// A bad message with the ID of an e-mail that was sent, or may be, changes nothing.
func TestADeadLetterDoesNotChangeTheStatusOfASentEmail(t *testing.T) {
	for _, was := range []status{sent, sending, doubtful} {
		s, _ := statusesOf(t)
		s.mustBegin(t, 1)
		must(t, s.end(t.Context(), anID, 1, was, nil))
		must(t, s.giveUp(t.Context(), anID, 0, refused, errUnheard))
		s.want(t, was)
	}
	s, _ := statusesOf(t)
	must(t, s.giveUp(t.Context(), anID, 0, refused, errors.New(strings.Repeat("ä\xff", 2000))))
	s.want(t, refused)
	must(t, s.doubt(t.Context(), anID))
	s.want(t, refused) // only 'sending' can become 'doubtful'
}

// A key that is claimed and not pending was sent. In any other state the inbox proves nothing.
func TestOnlyEmailsThatTheInboxHasFinishedAreSettled(t *testing.T) {
	for _, c := range []struct {
		was              status
		claimed, pending bool
		want             status
	}{
		{sending, true, false, sent},
		{doubtful, true, false, sent},
		{sending, true, true, sending},
		{doubtful, true, true, doubtful},
		{sending, false, false, sending},
		{retrying, true, false, retrying},
		{refused, true, false, refused},
	} {
		s, inbox := statusesOf(t)
		s.mustBegin(t, 1)
		err := errors.Join(s.end(t.Context(), anID, 1, c.was, nil), s.inTx(t.Context(), func(tx *sqlx.Tx) (err error) {
			if c.claimed {
				_, err = inbox.Claim(t.Context(), bridge.SQL(tx), consumer, []string{anID})
			}
			if c.pending && err == nil {
				_, err = inbox.AddPending(t.Context(), bridge.SQL(tx), consumer, driver.Pending{Key: anID, State: driver.Started, Run: "r", Attempts: 1}, time.Hour)
			}
			return err
		}))
		must(t, err)
		settled, err := s.settle(t.Context())
		if err != nil || (len(settled) == 1) != (c.want != c.was) {
			t.Errorf("%+v: settled %v, %v", c, settled, err)
		}
		s.want(t, c.want)
	}
}

func TestMoreStatusesThanABatchAreSettled(t *testing.T) {
	s, inbox := statusesOf(t)
	const n = 2*settleBatch + 1
	err := s.inTx(t.Context(), func(tx *sqlx.Tx) error {
		for i := range n {
			id := fmt.Sprintf("%s%04d", anID[:32], i)
			_, err := inbox.Claim(t.Context(), bridge.SQL(tx), consumer, []string{id})
			if err == nil {
				_, err = s.exec(t.Context(), tx, `INSERT INTO email_gateway (message_id, status, recipients, attempts, error, first_at, changed_at)
VALUES (?, 'sending', '', 1, '', ?, ?)`, id, timestamp(), timestamp())
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	must(t, err)
	if settled, err := s.settle(t.Context()); err != nil || len(settled) != n {
		t.Errorf("%d are settled, not %d; %v", len(settled), n, err)
	}
}

// Of two runs only one may begin, however late the other is: a frozen run may wake after AtMostOnce
// has given it up.
func TestARunBeginsOnlyWhereNoOtherMayHaveSent(t *testing.T) {
	for was, want := range map[status]error{"": nil, retrying: nil, refused: nil, failed: nil, sending: errBegun, doubtful: errBegun, sent: errSentBefore} {
		s, _ := statusesOf(t)
		if was != "" {
			s.mustBegin(t, 1)
			must(t, s.end(t.Context(), anID, 1, was, nil))
		}
		if _, err := s.begin(t.Context(), anID, nil, 0); !errors.Is(err, want) {
			t.Errorf("begin of an e-mail that is %q: %v, want %v", was, err, want)
		}
		if want != nil {
			s.want(t, was)
		}
	}
	s, _ := statusesOf(t)
	s.mustBegin(t, 1)
	s.mustBegin(t, 2) // the caller's first run was not done, although its result is unwritten
	if _, err := s.begin(t.Context(), anID, nil, 1); !errors.Is(err, errBegun) {
		t.Errorf("a run that knows of an earlier one only: %v", err)
	}
}

// addPending claims anID and leaves it pending.
func addPending(t *testing.T, s *statuses, state driver.State) {
	t.Helper()
	must(t, s.inTx(t.Context(), func(tx *sqlx.Tx) error {
		_, err := s.inbox.Claim(t.Context(), bridge.SQL(tx), consumer, []string{anID})
		if err == nil {
			_, err = s.inbox.AddPending(t.Context(), bridge.SQL(tx), consumer, driver.Pending{Key: anID, State: state, Run: "r", Attempts: 1}, time.Hour)
		}
		return err
	}))
}

// A gateway died between 'sent' and the inbox's commit, and none ran for EMAIL_RETENTION.
func TestAnEmailThatWasSentIsNotSentAgainAfterTheRetention(t *testing.T) {
	for _, state := range pendingStates {
		s, _ := statusesOf(t)
		s.mustBegin(t, 1)
		must(t, s.end(t.Context(), anID, 1, sent, nil))
		addPending(t, s, state)
		must(t, s.purge(t.Context(), timestamp().Add(time.Hour)))
		s.want(t, sent)
	}
	s, _ := statusesOf(t)
	s.mustBegin(t, 1)
	must(t, s.end(t.Context(), anID, 1, sent, nil))
	must(t, s.purge(t.Context(), timestamp().Add(time.Hour)))
	s.want(t, "")
}

func TestAnOldEmailWithoutAStatusIsNotKnownToBeUnsent(t *testing.T) {
	s, _ := statusesOf(t)
	g := &gateway{config: &config{Retention: environment.Span(2 * time.Hour)}, statuses: s}
	for age, want := range map[time.Duration]pending.Answer{time.Hour: pending.DidNotHappen, 3 * time.Hour: pending.Unknown} {
		verdict, err := g.findOut(t.Context(), pending.Message{Key: anID, Since: time.Now().Add(-age)})
		if err != nil || verdict != want {
			t.Errorf("%v old: verdict %v, %v; want %v", age, verdict, err, want)
		}
	}
}

// A retry releases an e-mail only if the inbox has it as doubtful or failed.
func TestARetryReleasesOnlyDoubtfulAndFailedEmails(t *testing.T) {
	for _, c := range []struct {
		state     driver.State
		was, want status
	}{
		{driver.Doubtful, doubtful, retrying},
		{driver.Failed, doubtful, retrying},
		{driver.Started, doubtful, doubtful},
		{driver.Ready, doubtful, doubtful},
		{driver.Doubtful, sent, sent}, // a gateway died between the commits of status and inbox
	} {
		s, _ := statusesOf(t)
		s.mustBegin(t, 1)
		must(t, s.end(t.Context(), anID, 1, c.was, nil))
		addPending(t, s, c.state)
		released, err := s.release(t.Context(), anID)
		must(t, err)
		if released != (c.want == retrying) {
			t.Errorf("%+v: released: %t", c, released)
		}
		s.want(t, c.want)
	}
}

// A running gateway may see the status before the command changes the inbox.
func TestARetrySucceedsIfARunningGatewayIsFaster(t *testing.T) {
	for name, gateway := range map[string]string{
		"it has sent the e-mail": `DELETE FROM bridge_inbox_pending`,
		"it is sending":          `UPDATE bridge_inbox_pending SET state = 'started', due_ms = 1e15`,
	} {
		t.Run(name, func(t *testing.T) {
			s, inbox := statusesOf(t)
			s.mustBegin(t, 1)
			must(t, s.end(t.Context(), anID, 1, doubtful, nil))
			addPending(t, s, driver.Doubtful)
			_, err := s.db.Exec(`CREATE TRIGGER faster AFTER UPDATE ON email_gateway WHEN NEW.status = 'retrying' BEGIN ` + gateway + `; END`)
			must(t, err)
			effects, err := pending.New(inbox, consumer, &pending.Options{HandBack: true})
			must(t, err)
			text, err := (records{s.db.DB, effects, s}).retry(t.Context(), anID)
			must(t, err)
			if !strings.Contains(text, "no longer doubtful") {
				t.Errorf("the command says %q", text)
			}
			s.want(t, retrying)
			if _, err := (records{s.db.DB, effects, s}).retry(t.Context(), anID); err == nil {
				t.Error("a second retry succeeds, although the e-mail is not doubtful")
			}
		})
	}
}
