package sidejob_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
				var log bytes.Buffer
				job := sidejob.New("unpark", slog.New(slog.NewTextHandler(&log, nil)))
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				rounds, mended := 0, false
				go func() {
					defer close(ended)
					job.Run(ctx, func(context.Context) (time.Duration, error) {
						rounds++
						if mended {
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
				if rounds < 3600/30 || rounds > 3600/5 {
					t.Errorf("%d rounds in an hour of failures", rounds)
				}
				mended = true
				time.Sleep(40 * time.Second) // a calm of less than a minute is none
				said(1, 0)
				time.Sleep(2 * time.Minute)
				said(1, 1)
				mended = false
				time.Sleep(time.Hour)
				said(2, 1)
				cancel()
				<-ended
			})
		})
	}
}

func TestWhatADoneJobPanicsWithIsInTheLog(t *testing.T) {
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
