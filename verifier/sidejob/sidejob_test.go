package sidejob_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/verifier/sidejob"
)

const (
	fails = "side job fails"
	works = "side job works again"
)

func TestAJobThatFailsIsTriedAgainLessAndLessAndSaysSoOnce(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error": func() error { return errors.New("no right") },
		"panic": func() error { panic("its own fault") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log servertest.Log
				job := sidejob.New("sweep", slog.New(slog.NewTextHandler(&log, nil)))
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				var rounds atomic.Int64
				var repaired atomic.Bool
				go func() {
					defer close(ended)
					job.Run(ctx, func(context.Context) (time.Duration, error) {
						rounds.Add(1)
						if repaired.Load() {
							return time.Second, nil
						}
						return 0, fail()
					})
				}()
				said := func(failures, recoveries int) {
					t.Helper()
					synctest.Wait()
					text := log.String()
					if strings.Count(text, fails) != failures || strings.Count(text, works) != recoveries {
						t.Errorf("the log: %s", text)
					}
				}
				time.Sleep(time.Hour)
				said(1, 0)
				if n := rounds.Load(); n < 3600/30 || n > 3600/5 {
					t.Errorf("%d rounds in an hour of failures", n)
				}
				repaired.Store(true)
				time.Sleep(30 * time.Second) // less than a minute after the last failure, which was up to 22.5 s ago
				said(1, 0)
				time.Sleep(2 * time.Minute)
				said(1, 1)
				repaired.Store(false)
				time.Sleep(time.Hour)
				said(2, 1)
				cancel()
				<-ended
			})
		})
	}
}

func TestThePanicOfAJobIsInTheLog(t *testing.T) {
	var log bytes.Buffer
	job := sidejob.New("observe", slog.New(slog.NewTextHandler(&log, nil)))
	for range 3 {
		job.Do(func() { panic("its own fault") })
	}
	job.Do(func() {})
	if text := log.String(); strings.Count(text, fails) != 1 || !strings.Contains(text, "its own fault") || !strings.Contains(text, "sidejob_test.go") {
		t.Errorf("the log: %s", text)
	}
}
