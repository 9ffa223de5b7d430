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
	"time"
)

// A session is a contender at work. Its application and its relay have their own processes; the
// target's consumer is in this one.
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
	committed   int  // messages so far
	warm        bool // it has been warmed up
}

// with runs fn with a contender in a fresh place. A contender that sends a message of an
// uncommitted transaction makes the comparison worthless, so that is an error.
func (w *world) with(ctx context.Context, c *contender, k kind, fn func(s *session) error) error {
	s, err := w.begin(ctx, c, k)
	if err != nil {
		return err
	}
	if err = fn(s); err == nil {
		err = s.check(ctx)
	}
	s.end()
	return err
}

// begin starts a contender in a fresh place. It sends one message that is rolled back, then one
// that is committed, and waits for the latter.
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
	for _, o := range []order{{RollBack: true, Workers: 1, Stop: 1, Size: 8}, {Workers: 1, Stop: 1, Size: 8}} {
		if o.RollBack && c.handles() {
			continue
		}
		out, err := s.do(o)
		if err != nil {
			return s, err
		}
		if missing := s.await(out); missing > 0 {
			return s, errors.Join(errors.New("the first message did not come"), failed(s.application, s.relay))
		}
	}
	return s, w.settle(ctx)
}

// startRelay starts a contender's relay, if it has one.
func (w *world) startRelay(c *contender, p place) (*child, error) {
	if c.verifier {
		return w.startVerifier(p)
	}
	if c.relay == nil {
		return nil, nil
	}
	return startSelf(roleRelay, p, nil)
}

// startVerifier starts the worker. BRIDGE_ variables override its defaults.
func (w *world) startVerifier(p place) (*child, error) {
	cmd := exec.Command(w.verifier)
	cmd.Env = append(os.Environ(), "BRIDGE_LOG_LEVEL=warn", "BRIDGE_HTTP_ADDR=127.0.0.1:0",
		"BRIDGE_DATABASE_URL="+p.Database, "BRIDGE_AMQP_URL="+p.AMQP, "BRIDGE_QUEUE="+p.Staging, "BRIDGE_ALLOW=*:*")
	if p.Shards > 0 {
		cmd.Env = append(cmd.Env, fmt.Sprintf("BRIDGE_ORDERED_SHARDS=%d", p.Shards))
	}
	if p.Classic {
		cmd.Env = append(cmd.Env, "BRIDGE_CLASSIC=true")
	}
	return startChild(cmd)
}

func (s *session) startApplication() error {
	var in io.WriteCloser
	var out io.ReadCloser
	var pipeErr error
	application, err := startSelf(roleApplication, s.place, func(cmd *exec.Cmd) {
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

// do has the application carry out an order.
func (s *session) do(o order) (outcome, error) {
	var out outcome
	err := s.orders.Encode(o)
	if err == nil {
		err = s.outcomes.Decode(&out)
	}
	if err != nil {
		return out, errors.Join(fmt.Errorf("order to the application: %w", err), failed(s.application, s.relay))
	}
	if out.Failed > 0 {
		s.w.say("   %s: %d transactions failed, the first with: %s", s.contender.name, out.Failed, out.Failure)
		if s.w.test {
			return out, errors.New(out.Failure)
		}
	}
	s.committed += len(out.Messages)
	return out, nil
}

// await waits a minute at most until all messages of o have come, and returns the number that have
// not.
func (s *session) await(o outcome) (missing int) {
	if s.contender.silent {
		return 0
	}
	_, missing = s.target.wait(o.Messages, time.Minute)
	return missing
}

// failed returns an error if a process has ended.
func failed(children ...*child) error {
	var err error
	for _, c := range children {
		if c != nil {
			err = errors.Join(err, c.failed())
		}
	}
	return err
}

// measurement is the result of one order.
type measurement struct {
	outcome
	silent               bool            // no message will come
	committed, delivered float64         // messages per second, within the window
	came                 int             // messages delivered within the window
	latencies            []time.Duration // from the return of COMMIT to the arrival, in order of the commits
	missing              int             // messages that had not come within config.patience
	cpu                  processorTimes  // within the window
}

// measure has an order carried out and waits for its messages. Before that it runs the order
// briefly to warm up: connections are opened, plans are made, the database creates files for the
// first large messages, and queues reach their usual length.
func (s *session) measure(o order) (m measurement, err error) {
	w, warm := s.w, o
	if o.Stop > 0 {
		warm.Stop = min(o.Stop, 5)
	} else {
		o.Window = w.window
		warm.Window = pick(s.warm, w.warmUp/2, w.warmUp)
	}
	s.warm = true
	first, err := s.do(warm)
	if err != nil {
		return m, err
	}
	if o.Stop > 0 {
		s.await(first)
	}
	application := s.application.cmd.Process.Pid
	before := readProcessorTimes(application, s.relay)
	if m.outcome, err = s.do(o); err != nil {
		return m, err
	}
	m.cpu = readProcessorTimes(application, s.relay).minus(before)
	seconds := m.To.sub(m.From).Seconds()
	m.silent = s.contender.silent
	m.committed = float64(len(m.Messages)) / seconds
	m.came = s.target.between(m.From, m.To)
	m.delivered = float64(m.came) / seconds
	if !m.silent {
		m.latencies, m.missing = s.target.wait(m.Messages, w.patience)
	}
	if m.missing > 0 && w.test {
		return m, fmt.Errorf("%d of %d messages did not come", m.missing, len(m.Messages))
	}
	return m, failed(s.application, s.relay)
}

// values returns the metrics of a measurement. If no messages come, the processor time is per
// transaction.
func (m measurement) values() []any {
	var values []any
	n := m.Committed
	if !m.silent {
		n = m.came
		values = []any{"delivered/s", m.delivered,
			"commit to target p50 ms", quantile(m.latencies, m.missing, 0.5),
			"commit to target p99 ms", quantile(m.latencies, m.missing, 0.99)}
	}
	values = append(values, "committed/s", m.committed,
		"transaction p50 ms", quantile(m.Took, 0, 0.5),
		"transaction p99 ms", quantile(m.Took, 0, 0.99))
	return append(values, m.cpu.perMessage(n)...)
}

// check ends the processes, so that no more messages arrive, and returns an error if too many have
// come.
func (s *session) check(ctx context.Context) error {
	s.stopProcesses()
	came := s.target.count()
	if s.contender.handles() {
		if err := s.db.QueryRowContext(ctx, `SELECT count(*) FROM orders`).Scan(&came); err != nil {
			return fmt.Errorf("count orders: %w", err)
		}
		s.committed-- // see setUpReceiver
	}
	if came > s.committed+s.contender.ahead || s.contender.handles() && came < s.committed {
		return fmt.Errorf("%d messages have come or were handled, must be %d", came, s.committed)
	}
	return nil
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

// stopProcesses stops the application and the relay. A second call does nothing.
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
