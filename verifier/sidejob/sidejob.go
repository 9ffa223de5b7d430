// Package sidejob runs jobs whose failure ends no session and delays no other job (rule 12 of
// package bridge). It is for package verifier, and for a worker that is built around it.
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
	// retryFirst and retryLongest bound the time between two attempts of a job that fails.
	retryFirst   = 500 * time.Millisecond
	retryLongest = 15 * time.Second
	// calm is how long a job has not failed when it counts as working again.
	calm = time.Minute
)

// A Job may fail and panic. The log says when it begins to fail, and when it has not failed for
// a minute.
type Job struct {
	name   string
	fails  string // the log's text when it begins to fail
	logger *slog.Logger

	failing atomic.Bool
	mu      sync.Mutex
	failed  time.Time // the last time, while it is failing
}

// New returns a job that no message waits for; the log calls it by its name.
func New(name string, logger *slog.Logger) *Job {
	return NewAwaited(name, "messages do not wait for it", logger)
}

// NewAwaited returns a job of which the log also says, when it fails, which messages wait.
func NewAwaited(name, waiting string, logger *slog.Logger) *Job {
	return &Job{name: name, fails: "side job fails; " + waiting, logger: logger}
}

// Run does one round of the job after the other until ctx ends. A round returns how long to
// wait for the next one. After an error or a panic Run waits at least so long, and longer each
// time, up to 15 s.
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

// Do does the job once, now, and logs a panic.
func (j *Job) Do(once func()) {
	j.Report(guard(func() error {
		once()
		return nil
	}))
}

// Report logs the result of an attempt at the job, if that changes whether it works.
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

// Works logs that the job works again. It is for a long round that has begun well.
func (j *Job) Works() {
	if j.failing.Swap(false) {
		j.logger.Info("side job works again", "job", j.name)
	}
}

// guard makes an error of a panic.
func guard(f func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("panic: %v\n%s", reason, debug.Stack())
		}
	}()
	return f()
}
