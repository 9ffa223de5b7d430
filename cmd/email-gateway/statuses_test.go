package main

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/cmd/internal/database"
)

const anID = "01936f5e-7b1c-7cc0-9a3b-0a1b2c3d4e5f"

func newStatuses(t *testing.T) *statuses {
	t.Helper()
	db, err := database.Create(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "statuses.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if err := db.MigrateTables(t.Context(), tables, part); err != nil {
		t.Fatal(err)
	}
	return &statuses{db.DB}
}

func (s *statuses) want(t *testing.T, want status) {
	t.Helper()
	if is, err := s.get(t.Context(), anID); err != nil || is != want {
		t.Fatalf("the status is %q, %v; want %q", is, err, want)
	}
}

func (s *statuses) mustBegin(t *testing.T, want int) {
	t.Helper()
	if n, err := s.begin(t.Context(), anID, []string{"ann@example.org"}); err != nil || n != want {
		t.Fatalf("attempt %d, %v; want %d", n, err, want)
	}
	s.want(t, sending)
}

// What a run says after another one has begun could otherwise make findOut release
// what is being sent.
func TestARunThatIsOverdueCannotSpeakForALaterOne(t *testing.T) {
	s := newStatuses(t)
	s.mustBegin(t, 1)
	s.mustBegin(t, 2)
	if err := s.end(t.Context(), anID, 1, retrying, errUnheard); err != nil {
		t.Fatal(err)
	}
	s.want(t, sending)
	if err := s.end(t.Context(), anID, 2, sent, nil); err != nil {
		t.Fatal(err)
	}
	s.want(t, sent)
}

func TestAttemptsBeginAnewAfterTheDeadQueue(t *testing.T) {
	for _, now := range []status{refused, failed} {
		s := newStatuses(t)
		s.mustBegin(t, 1)
		s.mustBegin(t, 2)
		if err := s.end(t.Context(), anID, 2, now, errUnheard); err != nil {
			t.Fatal(err)
		}
		s.mustBegin(t, 1)
	}
}

// A bad message with the ID of an e-mail that was sent, or may be, changes nothing.
func TestTheDeadQueueDoesNotSpeakForWhatWasSent(t *testing.T) {
	for _, was := range []status{sent, sending, doubtful} {
		s := newStatuses(t)
		s.mustBegin(t, 1)
		if err := s.end(t.Context(), anID, 1, was, nil); err != nil {
			t.Fatal(err)
		}
		if err := s.giveUp(t.Context(), anID, refused, errUnheard); err != nil {
			t.Fatal(err)
		}
		s.want(t, was)
	}
	s := newStatuses(t)
	if err := s.giveUp(t.Context(), anID, refused, errors.New(strings.Repeat("ä\xff", 2000))); err != nil {
		t.Fatal(err)
	}
	s.want(t, refused)
	if err := s.doubt(t.Context(), anID); err != nil {
		t.Fatal(err)
	}
	s.want(t, refused) // only what is being sent can be in doubt
}
