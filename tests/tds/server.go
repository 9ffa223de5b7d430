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

// The login that there is.
const (
	user     = "sa"
	password = "Stand-in 1"
)

// Options are the switches of Start. Nil and the zero value mean a primary that
// does what is documented.
type Options struct {
	// IgnoreHints: table hints mean nothing, and every SELECT reads the last
	// committed state, as on Babelfish.
	IgnoreHints bool
	// KeepIsolation: the reset of a pooled connection leaves the isolation level as
	// it is, as before SQL Server 2014.
	KeepIsolation bool
	// NeverWait: what would wait for a lock fails at once, with 1222.
	NeverWait bool
	// Scan: a table whose access path no hint fixes is read whole, also by key, as a plan
	// does that was made when the table was empty.
	Scan bool
	// Azure: it is Azure SQL Database by its edition and version, and DB_ID() is not the
	// database_id of sys.databases.
	Azure bool
	// Babelfish: it says so, ignores hints, has errors of its own, and does not know
	// delayed durability.
	Babelfish bool
	// Version is what it calls itself; empty is SQL Server 2022.
	Version string
	// OptimizedLocking: a row that was changed is protected by its transaction's ID alone,
	// and READPAST does not skip it.
	OptimizedLocking bool
	// Schema: the bridge's tables are in this schema, and no statement finds one without it. They
	// must be made there too.
	Schema string
}

// A Fault happens once.
type Fault int

const (
	// DropBeforeCommit: the connection ends when it asks for a commit, before it is done.
	DropBeforeCommit Fault = iota + 1
	// DropAfterCommit: the commit is done, and the connection ends before the answer.
	DropAfterCommit
	// DropInResult: the connection ends in the middle of the next rows.
	DropInResult
	// LateEnd: the next rows come at once, but their end some time later, or when the
	// client asks for it by an attention.
	LateEnd
	// Deadlock: the next statement that touches a table is the victim of a deadlock.
	Deadlock
	// LatchWait: the next to ask whom a session waits for is told of a latch.
	LatchWait
)

// A Server is a stand-in for one SQL Server.
type Server struct {
	options  Options
	listener net.Listener
	ended    sync.WaitGroup

	attentions atomic.Int64

	mu        sync.Mutex // of all that follows, and of all data
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
	replicated   map[string]Replication // tables, in whatever database
}

// Start starts a server with an empty database, master.
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

// StartedAnew has the server tell another time of its start; nothing else comes of it.
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

// Close ends all connections and waits for that.
func (s *Server) Close() {
	_ = s.listener.Close()
	s.mu.Lock()
	for _, session := range s.sessions {
		session.kill()
	}
	s.mu.Unlock()
	s.ended.Wait()
}

// FailOver makes the server a readable secondary, and keeps the connections; in
// an availability group they would end.
func (s *Server) FailOver() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secondary = true
}

// SetOffline has no login open the database until it is online again, as while it recovers.
func (s *Server) SetOffline(database string, offline bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.databases[database].offline = offline
}

// Attentions is how many attentions have come.
func (s *Server) Attentions() int { return int(s.attentions.Load()) }

// Deny takes a right from the login, in the form 'INSERT ON bridge_ledger'.
func (s *Server) Deny(right string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denied = append(s.denied, right)
}

// Inject has a fault happen, once, to whoever comes first.
func (s *Server) Inject(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
}

// happens tells whether a fault is due, and takes it.
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
