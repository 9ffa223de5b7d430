package tds

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// The only login.
const (
	user     = "sa"
	password = "Stand-in 1"
)

// Options are the switches of Start. Nil and the zero value mean a primary that behaves as
// documented.
type Options struct {
	// IgnoreHints: table hints have no effect, and every SELECT reads the last committed state, as
	// on Babelfish.
	IgnoreHints bool
	// KeepIsolation: the reset of a pooled connection does not change the isolation level, as
	// before SQL Server 2014.
	KeepIsolation bool
	// NeverWait: a statement that would wait for a lock fails at once, with 1222.
	NeverWait bool
	// Scan: a table whose access path no hint fixes is read whole, even by key, as by a plan that
	// was made when the table was empty.
	Scan bool
	// Azure: the server has the edition and version of Azure SQL Database, and DB_ID() is not the
	// database_id of sys.databases.
	Azure bool
	// Babelfish: the server reports that it is Babelfish, ignores hints, has its own errors, and
	// does not know delayed durability.
	Babelfish bool
	// Version is the reported version; if empty, the version of SQL Server 2022.
	Version string
	// OptimizedLocking: a changed row is protected only by its transaction's ID, and READPAST does
	// not skip it.
	OptimizedLocking bool
	// Schema: the bridge's tables are in this schema, and no statement finds them without it. They
	// must be created there too.
	Schema string
}

// A Fault happens once after Inject.
type Fault int

const (
	// DropBeforeCommit: the connection ends at a request to commit, before the commit.
	DropBeforeCommit Fault = iota + 1
	// DropAfterCommit: the connection ends after a commit, before the answer.
	DropAfterCommit
	// Severe: the next statement is answered with an error that ends the connection.
	Severe
	// DropInResult: the connection ends in the middle of the next rows.
	DropInResult
	// LateEnd: the next rows come at once, and their end some time later, or when the client
	// requests it by an attention.
	LateEnd
	// Deadlock: the next statement that touches a table is the victim of a deadlock.
	Deadlock
	// LatchWait: the next query for the sessions that block a session reports a latch.
	LatchWait
)

// A Server is a stand-in for one SQL Server.
type Server struct {
	options  Options
	listener net.Listener
	ended    sync.WaitGroup

	attentions atomic.Int64

	mu        sync.Mutex // guards the fields below, and all data
	databases map[string]*database
	sessions  map[int]*session
	lastSPID  int
	lastTx    uint64
	secondary bool
	started   time.Time
	denied    []string
	faults    []Fault

	plans        map[string]plan
	compilations int
	replicated   map[string]Replication // by table, in any database
}

// Start starts a server with an empty database named master.
func Start(options *Options) (*Server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start stand-in: %w", err)
	}
	s := &Server{listener: listener, databases: make(map[string]*database), sessions: make(map[int]*session), lastSPID: 50, started: time.Now().UTC(),
		plans: make(map[string]plan)}
	if options != nil {
		s.options = *options
	}
	s.options.IgnoreHints = s.options.IgnoreHints || s.options.Babelfish
	s.create("master")
	s.ended.Go(s.accept)
	return s, nil
}

// StartedAnew makes the server report another time of its start, without other effects.
func (s *Server) StartedAnew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started = s.started.Add(time.Hour)
}

// URL returns the address of a database for the driver.
func (s *Server) URL(database string) string {
	u := url.URL{
		Scheme:   "sqlserver",
		User:     url.UserPassword(user, password),
		Host:     s.listener.Addr().String(),
		RawQuery: url.Values{"database": {database}, "encrypt": {"disable"}}.Encode(),
	}
	return u.String()
}

// Close ends all connections and waits for their end.
func (s *Server) Close() {
	_ = s.listener.Close()
	s.mu.Lock()
	for _, session := range s.sessions {
		session.kill()
	}
	s.mu.Unlock()
	s.ended.Wait()
}

// FailOver turns the server into a readable secondary, and keeps the connections; in an
// availability group they would end.
func (s *Server) FailOver() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secondary = true
}

// SetOffline makes logins to the database fail until it is online again, as while it recovers.
func (s *Server) SetOffline(database string, offline bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.databases[database].offline = offline
}

// Attentions returns the number of received attentions.
func (s *Server) Attentions() int { return int(s.attentions.Load()) }

// Deny denies the login a right, in the form 'INSERT ON bridge_ledger'.
func (s *Server) Deny(right string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denied = append(s.denied, right)
}

// Inject makes a fault happen once, in the first session to which it applies.
func (s *Server) Inject(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
}

// happens reports whether a fault was injected, and removes it.
func (s *Server) happens(f Fault) bool {
	for i, next := range s.faults {
		if next == f {
			s.faults = append(s.faults[:i:i], s.faults[i+1:]...)
			return true
		}
	}
	return false
}

func (s *Server) create(name string) {
	s.databases[name] = &database{name: name, tables: make(map[string]*table), locks: make(map[resource]*lock), running: make(map[*execution]bool),
		compatibility: 160, durability: "DISABLED"}
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		s.ended.Go(func() { s.serve(conn) })
	}
}

func (s *Server) serve(conn net.Conn) {
	ctx, cancel := context.WithCancel(context.Background())
	s.mu.Lock()
	s.lastSPID++
	session := &session{server: s, conn: conn, spid: s.lastSPID, ctx: ctx, cancel: cancel, settings: standard}
	s.sessions[session.spid] = session
	s.mu.Unlock()
	session.serve()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, session.spid)
}
