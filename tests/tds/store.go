package tds

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// A row has the values of its columns, by their names.
type row map[string]any

// A table may also be a view, which has no rows.
type table struct {
	name     string            // with its schema, unless the schema is dbo
	kind     string            // as in sys.objects
	inMemory bool              // memory-optimized
	masked   map[string]bool   // masked columns
	columns  map[string]string // types by names
	indexes  []*index
	key      []string       // the columns of the unique key; none: rows differ by their order
	rows     map[string]row // by key, including uncommitted rows
	last     int64          // the last value of the identity column
	refuses  bool           // a trigger refuses deletes

	ignoresDuplicates bool // IGNORE_DUP_KEY of the key
	changes           int  // number of changes of rows, including undone ones

	escalation  string // lock escalation: TABLE, AUTO or DISABLE
	noRecompute bool   // of the statistics
}

// uniqueIdentifier is the only type that changes the stand-in's behaviour.
const uniqueIdentifier = "uniqueidentifier"

// An index is data for the catalogue. Only the table's key makes rows unique.
type index struct {
	name                       string
	columns                    []string
	unique, filtered, disabled bool
	columnstore                bool // clustered
	pageLocks, noRowLocks      bool
}

type database struct {
	name          string
	schemas       []string // besides dbo
	tables        map[string]*table
	locks         map[resource]*lock
	running       map[*execution]bool
	snapshot      bool // READ_COMMITTED_SNAPSHOT
	snapshots     bool // ALLOW_SNAPSHOT_ISOLATION
	compatibility int64
	durability    string
	offline       bool
}

// A resource is a row or, if the key is empty, a table.
type resource struct{ table, key string }

// A lock is exclusive, or for an update: then others may read the row, and may not lock it.
type lock struct {
	owner  *transaction
	before row // the last committed version
	update bool
	hinted bool // a hint has requested the lock
	freed  chan struct{}
}

// skipped reports whether READPAST skips a locked row.
func (x *execution) skipped(l *lock) bool { return l.hinted || !x.server.options.OptimizedLocking }

type transaction struct {
	id         uint64
	db         *database
	session    *session
	began      time.Time
	locks      []resource
	undo       []func()
	savepoints map[string]int // lengths of undo
	waitsFor   *lock
	victim     chan struct{} // closed when t is the victim of a deadlock, which ends its wait
}

func (t *transaction) undoTo(mark int) {
	for _, undo := range slices.Backward(t.undo[mark:]) {
		undo()
	}
	t.undo = t.undo[:mark]
}

// end frees the locks of t. To roll back, undo first. Running statements keep the versions that
// were committed when they began.
func (t *transaction) end() {
	for _, r := range t.locks {
		for x := range t.db.running {
			if _, kept := x.asOf[r]; !kept {
				x.asOf[r] = t.db.locks[r].before
			}
		}
		close(t.db.locks[r].freed)
		delete(t.db.locks, r)
	}
	t.locks = nil
}

// unlock frees a row that the transaction has locked and not changed.
func (x *execution) unlock(r resource) {
	close(x.db.locks[r].freed)
	delete(x.db.locks, r)
	x.tx.locks = slices.DeleteFunc(x.tx.locks, func(other resource) bool { return other == r })
}

// breakCircle ends the deadlock that t would close if it waited for l, and reports whether the
// victim is t. The victim is the transaction with the least to undo.
func (t *transaction) breakCircle(l *lock) bool {
	victim := t
	for ; l != nil; l = l.owner.waitsFor {
		if l.owner.isVictim() {
			return false // that ends the circle
		}
		if len(l.owner.undo) < len(victim.undo) {
			victim = l.owner
		}
		if l.owner == t {
			close(victim.victim)
			return victim == t
		}
	}
	return false
}

func (t *transaction) isVictim() bool {
	select {
	case <-t.victim:
		return true
	default:
		return false
	}
}

// A reading is the way in which a SELECT reads rows that another transaction has locked.
type reading int

const (
	waiting   reading = iota // wait until they are unlocked
	skipping                 // skip them
	versioned                // read the version that was committed when the statement began
	dirty                    // read the uncommitted version
)

// reading returns the way in which a SELECT reads, as determined by the hints, the isolation level
// and the server.
func (x *execution) reading(hints string) reading {
	switch {
	case x.server.options.IgnoreHints || x.onSecondary():
		return versioned
	case strings.Contains(hints, "READUNCOMMITTED"):
		return dirty
	case strings.Contains(hints, "READPAST"):
		locked := strings.Contains(hints, "READCOMMITTEDLOCK") || !x.db.snapshot
		if x.isolation != "REPEATABLE READ" && (x.isolation != "READ COMMITTED" || !locked) {
			panic(errReadPast)
		}
		return skipping
	case strings.Contains(hints, "READCOMMITTEDLOCK"):
		return waiting
	case x.isolation == "SNAPSHOT", x.isolation == "READ COMMITTED" && x.db.snapshot:
		return versioned
	case x.isolation == "READ UNCOMMITTED":
		return dirty
	default:
		return waiting
	}
}

// read returns the row of a key, or nil.
func (x *execution) read(t *table, key string, how reading) row {
	for {
		l := x.db.locks[resource{t.name, key}]
		before, changed := x.asOf[resource{t.name, key}]
		switch {
		case l != nil && l.owner == x.tx:
			return t.rows[key]
		case how == versioned && changed:
			return before
		case l == nil, l.update, how == dirty:
			return t.rows[key]
		case how == skipping && x.skipped(l):
			return nil
		case how == versioned:
			return l.before
		}
		x.wait(l)
	}
}

// seek is for a statement that reads by key. Without FORCESEEK it may pass through all rows, and
// wait for them.
func (x *execution) seek(t *table, hints string, how reading) {
	if !x.server.options.Scan || strings.Contains(hints, "FORCESEEK") {
		return
	}
	x.scan(t, how)
}

// scan returns all rows.
func (x *execution) scan(t *table, how reading) []row {
	return x.scanWhere(t, func(string) bool { return true }, how)
}

// scanPrefix returns the rows whose keys begin with a prefix, and waits for no other rows.
func (x *execution) scanPrefix(t *table, prefix string, how reading) []row {
	return x.scanWhere(t, func(key string) bool { return strings.HasPrefix(key, prefix) }, how)
}

// scanWhere returns the rows of the wanted keys, and waits for no other rows.
func (x *execution) scanWhere(t *table, wanted func(key string) bool, how reading) []row {
	keys := make(map[string]bool)
	for key := range t.rows {
		keys[key] = true
	}
	for r := range x.db.locks {
		if r.table == t.name && r.key != "" {
			keys[r.key] = true
		}
	}
	for r := range x.asOf {
		if r.table == t.name && r.key != "" {
			keys[r.key] = true
		}
	}
	var rows []row
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if !wanted(key) {
			continue
		}
		r := x.read(t, key, how)
		if r != nil {
			rows = append(rows, r)
		}
	}
	return rows
}

// absent reports whether a key has neither a row nor a lock.
func (x *execution) absent(t *table, key string) bool {
	return t.rows[key] == nil && x.db.locks[resource{t.name, key}] == nil
}

// lock locks a row or a table for the transaction.
func (x *execution) lock(r resource) {
	for {
		l := x.db.locks[r]
		if l == nil {
			break
		}
		if l.owner == x.tx {
			l.update = false
			return
		}
		x.wait(l)
	}
	l := &lock{owner: x.tx, freed: make(chan struct{})}
	if t := x.db.tables[r.table]; t != nil {
		l.before = t.rows[r.key]
	}
	x.db.locks[r] = l
	x.tx.locks = append(x.tx.locks, r)
}

// lockForUpdate locks a row for an update unless another transaction has locked it.
func (x *execution) lockForUpdate(r resource) bool {
	if l := x.db.locks[r]; l != nil {
		return l.owner == x.tx
	}
	x.lock(r)
	x.db.locks[r].update, x.db.locks[r].hinted = true, true
	return true
}

// awaitForUpdate waits until it can lock a row for an update.
func (x *execution) awaitForUpdate(r resource) {
	for !x.lockForUpdate(r) {
		x.wait(x.db.locks[r])
	}
}

// wait waits until l is freed. It unlocks the server meanwhile, so all data may be different
// afterwards.
func (x *execution) wait(l *lock) {
	if x.lockTimeout == 0 { // without waiting there is no deadlock
		panic(errLockTimeout)
	}
	if x.tx.breakCircle(l) {
		panic(errDeadlock)
	}
	if x.server.options.NeverWait {
		panic(errLockTimeout)
	}
	var timeout <-chan time.Time
	if x.lockTimeout >= 0 {
		timer := time.NewTimer(time.Duration(x.lockTimeout) * time.Millisecond)
		defer timer.Stop()
		timeout = timer.C
	}
	x.tx.waitsFor = l
	x.session.waitsFor = l
	x.server.mu.Unlock()
	defer func() {
		x.server.mu.Lock()
		x.tx.waitsFor = nil
		x.session.waitsFor = nil
	}()
	select {
	case <-l.freed:
	case <-x.tx.victim:
		panic(errDeadlock)
	case <-timeout:
		panic(errLockTimeout)
	case <-x.ctx.Done():
		panic(errInterrupted)
	}
}

// insert inserts a row, unless its key exists, and returns 1, the number of changed rows.
func (x *execution) insert(t *table, r row) uint64 {
	special := func(i *index) bool { return i.unique && i.filtered || i.disabled }
	if t.kind != "USER_TABLE" || t.inMemory || slices.ContainsFunc(t.indexes, special) {
		panic(unknown("insert", "into "+t.name))
	}
	if x.stopped() {
		return 0
	}
	t.last++
	if t.columns["recorded_at"] != "" && r["recorded_at"] == nil {
		r["recorded_at"] = now()
	}
	key := t.keyOf(r)
	x.lock(resource{t.name, key})
	if t.rows[key] != nil {
		if t.ignoresDuplicates {
			return 0
		}
		panic(duplicate(t))
	}
	x.put(t, key, r)
	return 1
}

// stopped reports whether the statement has changed as many rows as ROWCOUNT allows.
func (x *execution) stopped() bool { return x.rowCount > 0 && x.changed >= x.rowCount }

// put sets a row that the transaction has locked; nil deletes it.
func (x *execution) put(t *table, key string, r row) {
	before := t.rows[key]
	set := func(r row) {
		if r == nil {
			delete(t.rows, key)
		} else {
			t.rows[key] = r
		}
	}
	set(r)
	t.changes++
	x.changed++
	x.tx.undo = append(x.tx.undo, func() { set(before) })
}

// change locks every row and replaces it by the result of fn.
func (x *execution) change(t *table, fn func(row) row) (changed uint64) {
	for _, key := range slices.Sorted(maps.Keys(t.rows)) {
		if x.stopped() {
			break
		}
		x.lock(resource{t.name, key})
		if r := t.rows[key]; r != nil {
			if after := fn(maps.Clone(r)); !maps.Equal(r, after) || after == nil {
				x.put(t, key, after)
				changed++
			}
		}
	}
	return changed
}
