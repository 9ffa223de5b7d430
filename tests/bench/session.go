package main

import (
	"context"
	"database/sql"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// A session is a contender at work: its application and its relay, each a process
// of its own, and the target's consumer, which is in this one.
type session struct {
	w           *world
	contender   *contender
	place       place
	db          *sql.DB
	leave       func()
	application *child
	relay       *child // nil if there is none
	orders      *gob.Encoder
	outcomes    *gob.Decoder
	stdin       io.Closer
	target      *target
	warm        bool // it has been measured
}

// begin starts a contender in a fresh place, and waits until a message has come
// through.
func (w *world) begin(ctx context.Context, c *contender, k kind) (s *session, err error) {
	s = &session{w: w, contender: c}
	defer func() {
		if err != nil {
			s.end()
			err = fmt.Errorf("begin %s: %w", c.name, err)
		}
	}()
	if s.place, s.db, s.leave, err = w.newPlace(ctx, c, k); err != nil {
		return s, err
	}
	if s.target, err = consume(s.place.AMQP, s.place.Target); err != nil {
		return s, err
	}
	if s.relay, err = w.startRelay(c, s.place); err != nil {
		return s, err
	}
	if err = s.startApplication(); err != nil {
		return s, err
	}
	first, err := s.do(order{Window: time.Minute, Workers: 1, Stop: 1, Size: 8})
	if err != nil {
		return s, err
	}
	if missing := s.await(first); missing > 0 {
		return s, errors.Join(errors.New("the first message did not come"), s.alive())
	}
	return s, w.settle(ctx)
}

// startRelay starts what runs beside a contender's application.
func (w *world) startRelay(c *contender, p place) (*child, error) {
	if c.verifier {
		return w.startVerifier(p)
	}
	if c.relay == nil {
		return nil, nil
	}
	return startSelf(roleRelay, p, w.profileName("relay-"+c.name), nil)
}

// startVerifier starts the worker with its defaults, or what BRIDGE_ variables say.
func (w *world) startVerifier(p place) (*child, error) {
	database := p.Database
	if p.MariaDB {
		database = mariaDBURL(p.Database)
	}
	cmd := exec.Command(w.verifier)
	cmd.Env = append(os.Environ(), "BRIDGE_LOG_LEVEL=warn", "BRIDGE_HTTP_ADDR=127.0.0.1:0",
		"BRIDGE_DATABASE_URL="+database, "BRIDGE_AMQP_URL="+p.AMQP, "BRIDGE_QUEUE="+p.Staging, "BENCH_PROFILE="+w.profileName("verifier"))
	if p.Shards > 0 {
		cmd.Env = append(cmd.Env, fmt.Sprintf("BRIDGE_ORDERED_SHARDS=%d", p.Shards))
	}
	if p.Classic {
		cmd.Env = append(cmd.Env, "BRIDGE_CLASSIC=true")
	}
	return startChild(cmd)
}

// profileName is where a process writes its profiles; "" if it shall not.
func (w *world) profileName(process string) string {
	if !w.profile {
		return ""
	}
	return filepath.Join(w.out, fmt.Sprintf("%s.%d", process, w.places))
}

func (s *session) startApplication() error {
	var in io.WriteCloser
	var out io.ReadCloser
	var pipeErr error
	profile := s.w.profileName("application-" + s.contender.name)
	application, err := startSelf(roleApplication, s.place, profile, func(cmd *exec.Cmd) {
		if in, pipeErr = cmd.StdinPipe(); pipeErr == nil {
			out, pipeErr = cmd.StdoutPipe()
		}
	})
	if err = errors.Join(err, pipeErr); err != nil {
		return err
	}
	s.application, s.stdin = application, in
	s.orders, s.outcomes = gob.NewEncoder(in), gob.NewDecoder(out)
	return nil
}

// do has the application obey an order.
func (s *session) do(o order) (outcome, error) {
	var out outcome
	err := s.orders.Encode(o)
	if err == nil {
		err = s.outcomes.Decode(&out)
	}
	if err != nil {
		return out, errors.Join(fmt.Errorf("order to the application: %w", err), s.alive())
	}
	if out.Failed > 0 {
		s.w.say("   %s: %d transactions failed, the first with: %s", s.contender.name, out.Failed, out.Failure)
	}
	return out, nil
}

// await waits until what was committed has come, and returns how many messages
// have not after a minute.
func (s *session) await(o outcome) (missing int) {
	if s.contender.silent {
		return 0
	}
	_, missing = s.target.wait(o.Messages, time.Minute)
	return missing
}

// alive returns an error if a process has ended.
func (s *session) alive() error {
	var err error
	for _, c := range []*child{s.application, s.relay} {
		if c != nil {
			err = errors.Join(err, c.failed())
		}
	}
	return err
}

// warmUp is how long an order is carried out before it is measured: connections are
// opened, plans are made, queues come to their usual length.
const warmUp = time.Second

// warmAgain is the same for a contender that has been measured before.
const warmAgain = warmUp / 2

// measurement is what one order came to.
type measurement struct {
	outcome
	committed, delivered float64         // messages per second, within the window
	came                 int             // messages delivered within the window
	latencies            []time.Duration // from the return of COMMIT to the arrival, in order of the commits
	missing              int             // messages that had not come when patience was at its end
	cpu                  processorTimes  // within the window
}

// measure has an order carried out, for a short while first to warm up, and waits
// for what was committed.
func (s *session) measure(o order, patience time.Duration) (m measurement, err error) {
	if o.Stop == 0 {
		warm := o
		warm.Window = pick(s.warm, warmAgain, warmUp)
		s.warm = true
		if _, err := s.do(warm); err != nil {
			return m, err
		}
	}
	w, writers := s.w, []*child{s.application, s.relay}
	w.profiled(syscall.SIGUSR1, writers...)
	before := s.processorTimes()
	if m.outcome, err = s.do(o); err != nil {
		return m, err
	}
	m.cpu = s.processorTimes().minus(before)
	w.profiled(syscall.SIGUSR2, writers...)
	seconds := m.To.sub(m.From).Seconds()
	m.committed = float64(len(m.Messages)) / seconds
	m.came = s.target.between(m.From, m.To)
	m.delivered = float64(m.came) / seconds
	if !s.contender.silent {
		m.latencies, m.missing = s.target.wait(m.Messages, patience)
	}
	return m, s.alive()
}

// profiled begins or ends the profiles of processes that write one.
func (w *world) profiled(signal syscall.Signal, children ...*child) {
	if !w.profile {
		return
	}
	for _, c := range children {
		if c != nil {
			c.signal(signal)
		}
	}
}

// end stops the processes and clears the place.
func (s *session) end() {
	s.stopProcesses()
	if s.target != nil {
		s.target.close()
	}
	if s.leave != nil {
		s.leave()
	}
}

// stopProcesses may be called twice.
func (s *session) stopProcesses() {
	if s.stdin != nil {
		_ = s.stdin.Close() // the application ends
		select {
		case <-s.application.done:
		case <-time.After(20 * time.Second):
		}
	}
	for _, c := range []*child{s.application, s.relay} {
		if c == nil {
			continue
		}
		if err := c.stop(); err != nil {
			s.w.say("   %s of %s: %v", filepath.Base(c.cmd.Path), s.contender.name, err)
		}
	}
	s.stdin, s.application, s.relay = nil, nil, nil
}
