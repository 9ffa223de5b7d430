package tds

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"time"
)

// settings are the settings that SET changes.
type settings struct {
	isolation   string
	lockTimeout int64 // in ms; -1: no limit
	xactAbort   bool
	noCount     bool
	notQuoted   bool // QUOTED_IDENTIFIER is OFF
	rowCount    uint64
	textSize    int // 0: no limit, which the driver's login sets
}

var standard = settings{isolation: "READ COMMITTED", lockTimeout: -1}

// A session is one connection.
type session struct {
	server *Server
	conn   net.Conn
	spid   int
	ctx    context.Context // ends with the connection
	cancel context.CancelFunc

	settings
	db       *database
	readOnly bool         // logged in with ApplicationIntent=ReadOnly
	tx       *transaction // nil: every statement is a transaction
	waitsFor *lock        // nil if the session does not wait
	last     string       // the last batch

	program, host string // from the client's login
}

type request struct {
	message
	ctx context.Context // ends with the connection, or at an attention
}

func (s *session) serve() {
	defer func() {
		s.kill()
		s.server.mu.Lock()
		defer s.server.mu.Unlock()
		s.rollBack(nil)
	}()
	if s.login() != nil {
		return
	}
	requests := make(chan request)
	go s.receive(requests)
	for r := range requests {
		out := new(response)
		err := s.answer(r, out)
		switch {
		case errors.Is(err, errInterrupted):
			continue // the attention is acknowledged next, or the client is gone
		case err != nil:
			_ = writeMessage(s.conn, s.spid, out.body, false)
			s.kill()
		default:
			if s.reply(r, out) != nil {
				s.kill()
			}
		}
	}
}

// lateness is the delay of a LateEnd.
const lateness = 500 * time.Millisecond

func (s *session) reply(r request, out *response) error {
	if out.late > 0 {
		if err := writeMessage(s.conn, s.spid, out.body[:out.late], false); err != nil {
			return err
		}
		select {
		case <-r.ctx.Done():
		case <-time.After(lateness):
		}
	}
	return writeMessage(s.conn, s.spid, out.body[out.late:], true)
}

// kill ends the connection and so the session.
func (s *session) kill() {
	s.cancel()
	_ = s.conn.Close()
}

// receive reads requests, even while one runs, until the connection ends. A request that arrives
// while another runs is an attention and interrupts it.
func (s *session) receive(requests chan<- request) {
	defer close(requests)
	defer s.cancel()
	interrupt := s.cancel
	for {
		m, err := readMessage(s.conn)
		if err != nil {
			return
		}
		if m.kind == attention {
			s.server.attentions.Add(1)
			interrupt()
		}
		ctx, cancel := context.WithCancel(s.ctx)
		interrupt = cancel
		requests <- request{m, ctx}
	}
}

// answer writes the answer to a request. If it returns an error, the connection ends.
func (s *session) answer(r request, out *response) error {
	if r.kind == attention {
		out.done(tokenDone, doneAttention, 0)
		return nil
	}
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	if r.reset {
		s.rollBack(nil)
		kept := s.isolation
		s.settings = standard
		if s.server.options.KeepIsolation {
			s.isolation = kept
		}
		out.environment(envReset, nil, nil)
	}
	d := decoder{rest: r.body}
	descriptor := d.headers()
	var err error
	switch {
	case s.tx == nil && descriptor != 0:
		err = errResume
	case s.tx != nil && descriptor != s.tx.id:
		err = errDescriptor
	default:
		err = s.run(r, &d, out)
	}
	if d.err != nil {
		return d.err
	}
	var said *sqlError
	if errors.As(err, &said) { // the request is neither a batch nor a call
		out.error(said)
		out.done(tokenDone, doneError, 0)
		return nil
	}
	return err
}

func (s *session) run(r request, d *decoder, out *response) error {
	switch r.kind {
	case sqlBatch:
		x := &execution{session: s, ctx: r.ctx, out: out, done: tokenDone}
		s.last = fromUTF16(d.rest)
		err := x.batch(s.last)
		return x.finish(err)
	case rpcRequest:
		text, declaration, parameters, err := readRPC(d)
		if err != nil {
			return err
		}
		s.last = text
		for name, value := range parameters {
			if text, ok := value.(string); ok { // may be a table's name
				parameters[name] = strings.TrimPrefix(text, bracketed(s.server.options.Schema)+".")
			}
		}
		outside := s.settings
		x := &execution{session: s, ctx: r.ctx, out: out, done: tokenDoneInProc, parameters: parameters}
		x.plan = x.planOf(text, declaration)
		err = x.batch(text)
		s.settings = outside
		return x.finish(err)
	case tranManager:
		return s.manage(d, out)
	}
	return unknown("message", string('0'+r.kind))
}

// The requests to the transaction manager ([MS-TDS] 2.2.6.9).
const (
	tmBegin    = 5
	tmCommit   = 7
	tmRollback = 8
)

var isolations = []string{"", "READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE", "SNAPSHOT"}

func (s *session) manage(d *decoder, out *response) error {
	kind := d.uint16()
	var isolation byte
	if kind == tmBegin {
		isolation = d.byte()
	}
	name := d.name()
	switch kind {
	case tmBegin:
		if int(isolation) >= len(isolations) {
			return errLevelUnknown
		}
		if isolation != 0 {
			s.isolation = isolations[isolation]
		}
		s.tx = s.begin()
		out.environment(envBegin, s.tx.descriptor(), nil)
	case tmCommit:
		if s.tx == nil {
			return errNoCommit
		}
		if s.server.happens(DropBeforeCommit) {
			return errDropped
		}
		out.environment(envCommit, nil, s.tx.descriptor())
		s.tx.end()
		s.tx = nil
		if s.server.happens(DropAfterCommit) {
			out.body = nil
			return errDropped
		}
	case tmRollback:
		if s.tx == nil {
			return errNoRollback
		}
		if name != "" {
			return unknown("rollback", "to "+name)
		}
		s.rollBack(out)
	default:
		return unknown("transaction manager request", string('0'+byte(kind)))
	}
	out.done(tokenDone, 0, 0)
	return nil
}

func (s *session) begin() *transaction {
	s.server.lastTx++
	return &transaction{id: s.server.lastTx, db: s.db, session: s, began: time.Now(),
		savepoints: make(map[string]int), victim: make(chan struct{})}
}

// rollBack rolls the open transaction back, if there is one, and reports it to out.
func (s *session) rollBack(out *response) {
	if s.tx == nil {
		return
	}
	if out != nil {
		out.environment(envRollback, nil, s.tx.descriptor())
	}
	s.tx.undoTo(0)
	s.tx.end()
	s.tx = nil
}

func (s *session) rollBackTo(savepoint string) {
	if s.tx == nil {
		panic(errNoSavepoint)
	}
	mark, ok := s.tx.savepoints[savepoint]
	if !ok {
		panic(errNoSavepoint)
	}
	s.tx.undoTo(mark)
}

func (t *transaction) descriptor() []byte { return binary.LittleEndian.AppendUint64(nil, t.id) }

func (s *session) onSecondary() bool { return s.server.secondary || s.readOnly }
