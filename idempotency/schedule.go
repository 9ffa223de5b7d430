package idempotency

import (
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A job is a delivery that waits for a worker, or has one.
type job struct {
	session      *consumerSession
	delivery     amqp.Delivery
	acknowledger *acknowledger
	key          string // jobs with the same key run one after the other; "" for none
	release      func() // gives back the delivery's memory
	passed       bool   // the next job has the key, or gets it now
	began        time.Time
}

// A schedule starts jobs in the order in which they came, up to a number of workers, and one at a
// time per key. It belongs to a Consumer and not to a session: a handler that goes on after its
// session keeps its worker and its key. Jobs that have not begun when their session ends are
// dropped. The prefetch bounds their number.
type schedule struct {
	workers int
	most    int           // most jobs that one worker takes at once
	run     func([]*job)  // runs jobs of one session
	freed   chan struct{} // a worker is free
	idle    chan []*job   // jobs for a goroutine that waits in await

	mu      sync.Mutex
	ready   []*job            // jobs that have their key, and wait for a worker
	behind  map[string][]*job // jobs that wait for their key; the keys in the map are taken
	running map[*job]struct{} // the first job of each worker
}

func newSchedule(workers, most int, run func([]*job)) *schedule {
	return &schedule{workers: workers, most: most, run: run, freed: make(chan struct{}, 1), idle: make(chan []*job),
		behind: make(map[string][]*job), running: make(map[*job]struct{})}
}

func (s *schedule) add(j *job) {
	s.begin(s.change(func() []*job {
		waiting, taken := s.behind[j.key]
		if taken && j.key != "" {
			s.behind[j.key] = append(waiting, j)
			return nil
		}
		if j.key != "" {
			s.behind[j.key] = nil
		}
		s.ready = append(s.ready, j)
		return nil
	}))
}

// begin runs jobs in an idle goroutine, or else in a new one.
func (s *schedule) begin(jobs []*job) {
	if jobs == nil {
		return
	}
	select {
	case s.idle <- jobs:
	default:
		go s.work(jobs)
	}
}

// work runs jobs, and then others, until the session of its last jobs is over: a new goroutine for
// each message would cost more, since its stack grows anew. If a handler ends the goroutine
// (runtime.Goexit), another one goes on.
func (s *schedule) work(jobs []*job) {
	defer func() { s.begin(s.finish(jobs)) }()
	for jobs != nil {
		session := jobs[0].session
		s.run(jobs)
		if jobs = s.finish(jobs); jobs == nil {
			jobs = s.await(session)
		}
	}
}

// await returns the next jobs, or nil when session is over.
func (s *schedule) await(session *consumerSession) []*job {
	select {
	case jobs := <-s.idle:
		return jobs
	case <-session.Stopping.Done():
		return nil
	}
}

// finish ends the jobs of a worker, and returns the next jobs that the worker is to run.
func (s *schedule) finish(jobs []*job) (next []*job) {
	if jobs == nil {
		return nil
	}
	next = s.change(func() []*job {
		delete(s.running, jobs[0])
		for _, j := range jobs {
			s.passOnce(j)
		}
		return jobs
	})
	select {
	case s.freed <- struct{}{}:
	default:
	}
	return next
}

// releaseKey releases the key of a job in a batch that is acked or rejected while its worker goes on.
func (s *schedule) releaseKey(j *job) {
	s.begin(s.change(func() []*job {
		s.passOnce(j)
		return nil
	}))
}

// prune drops the jobs of sessions that are over.
func (s *schedule) prune() {
	s.begin(s.change(func() (dropped []*job) {
		for key, waiting := range s.behind {
			s.behind[key] = slices.DeleteFunc(waiting, func(j *job) bool {
				over := j.session.over()
				if over {
					dropped = append(dropped, j)
				}
				return over
			})
		}
		return dropped
	}))
}

// change changes the schedule, starts jobs, and gives back the memory of ended jobs. It returns the
// jobs of the first free worker, which the caller is to run.
func (s *schedule) change(change func() (ended []*job)) (next []*job) {
	s.mu.Lock()
	ended := change()
	next, dropped := s.start()
	s.mu.Unlock()
	for _, gone := range [...][]*job{ended, dropped} {
		for _, j := range gone {
			j.release() // may use the network
		}
	}
	return next
}

// start starts jobs while workers are free, and drops jobs whose session is over. It leaves the jobs
// of the first free worker to the caller.
func (s *schedule) start() (next, dropped []*job) {
	for i := 0; i < len(s.ready); {
		j := s.ready[i]
		switch {
		case j.session.over():
			dropped = append(dropped, j)
			s.passOnce(j)
		case len(s.running) < s.workers:
			j.began = time.Now()
			s.running[j] = struct{}{}
			end := i + 1
			for end < len(s.ready) && end-i < s.most && s.ready[end].session == j.session {
				end++
			}
			jobs := slices.Clone(s.ready[i:end])
			s.ready = slices.Delete(s.ready, i, end)
			if next == nil {
				next = jobs
			} else {
				s.begin(jobs)
			}
			continue
		default:
			i++
			continue
		}
		s.ready = slices.Delete(s.ready, i, i+1)
	}
	return next, dropped
}

// passOnce passes the key of a job to the next one that waits for it.
func (s *schedule) passOnce(j *job) {
	if j.key == "" || j.passed {
		return
	}
	j.passed = true
	key := j.key
	waiting := s.behind[key]
	if len(waiting) == 0 {
		delete(s.behind, key)
		return
	}
	s.ready = append(s.ready, waiting[0])
	s.behind[key] = waiting[1:]
}

// state returns how many workers run, and when the longest-running of them began.
func (s *schedule) state() (running int, oldest time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for j := range s.running {
		if oldest.IsZero() || j.began.Before(oldest) {
			oldest = j.began
		}
	}
	return len(s.running), oldest
}
