// Package sidejob runs jobs whose failure ends no session and delays no other job (rule 12 of
// package bridge). Package verifier and the programs around a verifier use it.
package sidejob

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
)

const (
	// retryFirst and retryLongest bound the time between two attempts of a failing job, before a
	// jitter of half that time.
	retryFirst   = 500 * time.Millisecond
	retryLongest = 15 * time.Second
	// calm is the time without a failure after which a job counts as working again.
	calm = time.Minute
)

// A Job may fail and panic. The log reports when it begins to fail, and when it has not failed for
// a minute.
type Job struct {
	name   string
	fails  string // the log's text when it begins to fail
	logger *slog.Logger

	failing atomic.Bool
	mu      sync.Mutex
	failed  time.Time // when it last failed, while it is failing
}

// New returns a job that no message waits for. name is its name in the log.
func New(name string, logger *slog.Logger) *Job {
	return NewAwaited(name, "no message waits for it", logger)
}

// NewAwaited returns a job that messages wait for. If it fails, the log also has the text waiting,
// which says which messages these are.
func NewAwaited(name, waiting string, logger *slog.Logger) *Job {
	return &Job{name: name, fails: "side job fails; " + waiting, logger: logger}
}

// Run runs one round of the job after the other until ctx ends. A round returns the time until the
// next one. After an error or a panic Run waits at least that long, and longer each time, up to
// 22.5 s (retryLongest with jitter).
func (j *Job) Run(ctx context.Context, round func(context.Context) (next time.Duration, err error)) {
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = retryFirst, retryLongest
	for ctx.Err() == nil {
		var next time.Duration
		err := guard(func() (err error) {
			next, err = round(ctx)
			return err
		})
		if ctx.Err() != nil {
			return
		}
		j.Report(err)
		if err == nil {
			retry.Reset()
		} else {
			next = max(next, retry.NextBackOff())
		}
		timer := time.NewTimer(next)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// Do runs the job once, and logs a panic.
func (j *Job) Do(once func()) {
	j.Report(guard(func() error {
		once()
		return nil
	}))
}

// Report logs the result of an attempt if the job begins to fail, or works again.
func (j *Job) Report(err error) {
	if err == nil && !j.failing.Load() {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()
	switch {
	case err != nil:
		j.failed = now
		if !j.failing.Swap(true) {
			j.logger.Warn(j.fails, "job", j.name, "error", err)
		}
	case now.Sub(j.failed) >= calm:
		j.Works()
	}
}

// Works logs that the job works again. Call it in a long round that has begun well.
func (j *Job) Works() {
	if j.failing.Swap(false) {
		j.logger.Info("side job works again", "job", j.name)
	}
}

// guard turns a panic into an error.
func guard(f func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("panic: %v\n%s", reason, debug.Stack())
		}
	}()
	return f()
}
