package tds

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An execution runs a batch of statements.
type execution struct {
	*session
	ctx        context.Context
	out        *response
	done       byte // the token that ends a statement
	parameters map[string]any
	plan       plan // nil if there are no parameters

	now, since time.Time // the variables @now and @since
	added      []string  // columns that the batch has added

	// The current statement: its text; its transaction, which is the session's or its own; the
	// previous versions of the rows that others have committed since it began; and the number of
	// rows that it has changed.
	text    string
	tx      *transaction
	asOf    map[resource]row
	changed uint64 // rows
}

// A guid is a uniqueidentifier, in the order of its storage.
type guid [16]byte

func (g guid) String() string {
	h := func(b ...byte) string { return strings.ToUpper(hex.EncodeToString(b)) }
	return h(g[3], g[2], g[1], g[0]) + "-" + h(g[5], g[4]) + "-" + h(g[7], g[6]) + "-" + h(g[8:10]...) + "-" + h(g[10:]...)
}

// A statement is a statement that the stand-in recognizes: its pattern, and the function that runs
// it and returns the number of changed rows. The function panics with the error of a failed
// statement; attempt recovers it.
type statement struct {
	pattern *regexp.Regexp
	run     func(x *execution, words []string) uint64
}

// form returns a statement whose pattern is a text. Text in «» is a regular expression, $name is
// the name of a table or a column, and $asked the library's table of IDs.
func form(text string, run func(x *execution, words []string)) statement {
	return changes(text, func(x *execution, words []string) uint64 {
		run(x, words)
		return 0
	})
}

// changes returns the statement of form for a function that changes rows and returns their number.
func changes(text string, run func(x *execution, words []string) uint64) statement {
	text = strings.NewReplacer("$asked", askedTable, "$name", "«("+identifier+")»").Replace(text)
	pattern := "(?i)^"
	for text != "" {
		plain, rest, _ := strings.Cut(text, "«")
		expression, rest, _ := strings.Cut(rest, "»")
		pattern += regexp.QuoteMeta(plain) + expression
		text = rest
	}
	return statement{regexp.MustCompile(pattern + "$"), run}
}

var statements []statement

func init() {
	statements = slices.Concat(sessionStatements, ledgerStatements, identityStatements, carriedStatements, orphanStatements, inboxStatements, entityStatements, plainStatements, catalogueStatements, watchStatements, diagnoseStatements, schemaStatements)
}

// batch runs the statements of a text until one fails.
func (x *execution) batch(text string) error {
	sent := x.parameters
	skips := false
	for _, text := range split(text) {
		var err error
		if text == "END" {
			skips = false
			continue
		}
		if skips {
			continue
		}
		if !executed.MatchString(text) { // batch is called again with the inner text
			if text, err = x.server.options.withoutSchema(text); err != nil {
				return err
			}
		}
		if c := conditional.FindStringSubmatch(text); c != nil {
			holds, err := x.condition(c[1])
			if err != nil {
				return err
			}
			if skips = !holds; skips {
				continue
			}
			text = strings.TrimSpace(c[2])
		}
		if inner := executed.FindStringSubmatch(text); inner != nil {
			added := x.added
			x.added = nil
			if err := x.batch(strings.ReplaceAll(inner[1], "''", "'")); err != nil {
				return err
			}
			x.added = added
			continue
		}
		if text, x.parameters, err = cut(text, sent); err != nil {
			return err
		}
		if x.server.options.Babelfish && refusedByBabelfish.MatchString(text) {
			return &sqlError{babelfish, 16, "syntax error: " + text}
		}
		known := func(s statement) bool { return s.pattern.MatchString(text) }
		i := slices.IndexFunc(statements, known)
		if i < 0 {
			return unknown("statement", text)
		}
		if err := x.statement(statements[i], text); err != nil {
			return err
		}
	}
	return nil
}

// conditional begins a block that runs if an object or a version does not exist; END ends it.
var conditional = regexp.MustCompile(`^IF (OBJECT_ID\('\w+'\) IS NULL|NOT EXISTS \(.+?\)) BEGIN (.+)$`)

var noTable, noVersion = regexp.MustCompile(`^OBJECT_ID\('(\w+)'\) IS NULL$`), regexp.MustCompile(`^NOT EXISTS \(SELECT \* FROM (bridge_\w+_version) WHERE version_id = (\d+)\)$`)

func (x *execution) condition(text string) (holds bool, err error) {
	if name := noTable.FindStringSubmatch(text); name != nil {
		return x.db.tables[name[1]] == nil, nil
	}
	words := noVersion.FindStringSubmatch(text)
	if words == nil {
		return false, unknown("condition", text)
	}
	err = x.statement(statement{noVersion, func(x *execution, words []string) uint64 {
		holds = !x.hasVersion(words[1], words[2])
		return 0
	}}, text)
	return holds, err
}

// statement runs one statement, in the session's transaction or in its own. A failed statement is
// undone, and with it the transaction if the server does so.
func (x *execution) statement(s statement, text string) error {
	x.text = text
	x.tx = x.session.tx
	own := x.tx == nil
	if own {
		x.tx = x.begin()
	}
	mark := len(x.tx.undo)
	before := len(x.out.body)
	x.asOf = make(map[resource]row)
	x.changed, x.out.limit, x.out.textSize = 0, x.rowCount, x.textSize
	x.db.running[x] = true
	count, err := x.attempt(s, text)
	delete(x.db.running, x)
	if err != nil {
		x.tx.undoTo(mark)
	}
	if own {
		x.tx.end()
	} else if said := new(sqlError); errors.As(err, &said) && (said == errDeadlock || x.xactAbort) {
		x.rollBack(x.out)
	}
	if err != nil {
		return err
	}
	if x.out.columns != nil && x.server.happens(DropInResult) {
		x.out.body = x.out.body[:(before+len(x.out.body))/2]
		return errDropped
	}
	if x.out.columns != nil && x.server.happens(LateEnd) {
		x.out.late = len(x.out.body)
	}
	status := uint16(doneMore)
	if !x.noCount {
		status |= doneCount
	}
	if x.out.columns != nil {
		count = x.out.rows
	}
	x.out.done(x.done, status, count)
	x.out.columns = nil
	return nil
}

// attempt runs a statement, and returns the error with which it has panicked.
func (x *execution) attempt(s statement, text string) (changed uint64, err error) {
	defer func() {
		switch failure := recover().(type) {
		case nil:
		case runtime.Error:
			panic(failure)
		case error:
			err = failure
		default:
			panic(failure)
		}
	}()
	return s.run(x, s.pattern.FindStringSubmatch(text)), nil
}

// refusedByBabelfish matches the statements that Babelfish 4.3 refuses: measured.
var refusedByBabelfish = regexp.MustCompile(`LEFT LOOP JOIN|OUTPUT CAST\(|FORCESEEK \(|^UPDATE m SET .* WHERE consumer =`)

// finish ends the answer to a batch or a call.
func (x *execution) finish(err error) error {
	if err == nil && x.server.happens(Severe) {
		err = errBusy
	}
	var said *sqlError
	if err != nil && !errors.As(err, &said) {
		return err
	}
	var status uint16
	if said != nil && x.server.options.Babelfish {
		said = onBabelfish(said)
	}
	if said != nil {
		if first := precededBy[said]; first != nil {
			x.out.error(first)
		}
		x.out.error(said)
		status = doneError
		if said == errBusy {
			status = doneSevere
		}
	}
	if x.done == tokenDone {
		x.out.done(tokenDone, status, 0)
		return nil
	}
	if said != nil {
		x.out.done(tokenDoneInProc, doneMore|doneError, 0)
	}
	x.out.returnStatus(int32(status))
	x.out.done(tokenDoneProc, status, 0)
	return nil
}

// guid returns a parameter that the library casts to uniqueidentifier.
func (x *execution) guid(parameter string) guid {
	b, ok := x.parameters[parameter].([]byte)
	if !ok || len(b) != 16 {
		panic(&sqlError{8170, 16, fmt.Sprintf("%s is not 16 bytes of varbinary, but %T", parameter, x.parameters[parameter])})
	}
	return guid(b)
}

const askedTable = `(SELECT CAST(SUBSTRING(@p1, pos, 16) AS uniqueidentifier) AS id FROM (VALUES «((?:\(\d+\)(?:, )?)+)») AS place (pos) WHERE pos <= @p2) AS asked`

// asked returns the IDs that the library packs into @p1.
func (x *execution) asked(places string) (ids []guid) {
	packed, isBytes := x.parameters["@p1"].([]byte)
	used, isNumber := x.parameters["@p2"].(int64)
	if !isBytes || !isNumber {
		panic(unknown("parameter", "@p1 or @p2"))
	}
	for place := range strings.SplitSeq(places, ", ") {
		pos, err := strconv.Atoi(strings.Trim(place, "()"))
		if err != nil || pos+15 > len(packed) {
			panic(&sqlError{8170, 16, "fewer than 16 bytes at " + place})
		}
		if int64(pos) <= used {
			ids = append(ids, guid(packed[pos-1:pos+15]))
		}
	}
	return ids
}

var sessionStatements = []statement{
	form(`SET TRANSACTION ISOLATION LEVEL «(READ UNCOMMITTED|READ COMMITTED|REPEATABLE READ|SERIALIZABLE|SNAPSHOT)»`,
		func(x *execution, words []string) {
			x.isolation = strings.ToUpper(words[1])
		}),
	form(`SET LOCK_TIMEOUT «(-?\d+)»`, func(x *execution, words []string) {
		x.lockTimeout, _ = strconv.ParseInt(words[1], 10, 32)
	}),
	form(`SET XACT_ABORT «(ON|OFF)»`, func(x *execution, words []string) {
		x.xactAbort = strings.EqualFold(words[1], "ON")
	}),
	form(`SET QUOTED_IDENTIFIER «(ON|OFF)»`, func(x *execution, words []string) {
		x.notQuoted = strings.EqualFold(words[1], "OFF")
	}),
	form(`SELECT CONCAT(SESSIONPROPERTY('ANSI_NULLS'), SESSIONPROPERTY('ANSI_PADDING'), SESSIONPROPERTY('ANSI_WARNINGS'), SESSIONPROPERTY('ARITHABORT'), SESSIONPROPERTY('CONCAT_NULL_YIELDS_NULL'), SESSIONPROPERTY('QUOTED_IDENTIFIER'), SESSIONPROPERTY('NUMERIC_ROUNDABORT'))`,
		func(x *execution, _ []string) {
			x.out.describe(column{"", kindText})
			x.out.row(fmt.Sprintf("11111%d0", count(!x.notQuoted)))
		}),
	form(`SET NOCOUNT «(ON|OFF)»`, func(x *execution, words []string) {
		x.noCount = strings.EqualFold(words[1], "ON")
	}),
	form(`SET ROWCOUNT «(\d+)»`, func(x *execution, words []string) {
		x.rowCount, _ = strconv.ParseUint(words[1], 10, 32)
	}),
	form(`SET TEXTSIZE «(\d+)»`, func(x *execution, words []string) {
		x.textSize, _ = strconv.Atoi(words[1])
		if x.textSize == 0 {
			x.textSize = 4096
		}
	}),
	form(`BEGIN TRANSACTION`, func(x *execution, _ []string) {
		if x.session.tx != nil {
			panic(unknown("transaction", "inside a transaction"))
		}
		x.session.tx = x.begin()
		x.out.environment(envBegin, x.session.tx.descriptor(), nil)
	}),
	form(`COMMIT`, func(x *execution, _ []string) {
		if x.session.tx == nil {
			panic(errNoCommit)
		}
		x.out.environment(envCommit, nil, x.session.tx.descriptor())
		x.session.tx.end()
		x.session.tx = nil
	}),
	form(`SAVE TRANSACTION «(\w+)»`, func(x *execution, words []string) {
		if x.session.tx == nil {
			panic(errNoSavepoint)
		}
		x.tx.savepoints[words[1]] = len(x.tx.undo)
	}),
	form(`ROLLBACK TRANSACTION «(\w+)»`, func(x *execution, words []string) {
		x.rollBackTo(words[1])
	}),
	form(`SELECT 1`, func(x *execution, _ []string) { x.number(1) }),
	form(`SELECT @@SPID`, func(x *execution, _ []string) { x.number(x.spid) }),
	form(`SELECT CONCAT(@@LOCK_TIMEOUT, ' ', @@OPTIONS & 16384, ' ', @@OPTIONS & 512, ' ', transaction_isolation_level) FROM sys.dm_exec_sessions WHERE session_id = @@SPID`,
		func(x *execution, _ []string) {
			x.out.describe(column{"", kindText})
			x.out.row(fmt.Sprint(x.lockTimeout, count(x.xactAbort)*16384, count(x.noCount)*512, slices.Index(isolations, x.isolation)))
		}),
	form(`SELECT CONCAT(@@TEXTSIZE, ' ', @@OPTIONS & 16896)`, func(x *execution, _ []string) {
		x.out.describe(column{"", kindText})
		x.out.row(fmt.Sprint(x.textSize, count(x.xactAbort)*16384+count(x.noCount)*512))
	}),
	form(`SELECT count(*) FROM sys.dm_exec_requests WHERE database_id = DB_ID() AND wait_type LIKE 'LCK%'`,
		func(x *execution, _ []string) {
			n := 0
			for _, other := range x.server.sessions {
				if other.waitsFor != nil && other.db == x.db {
					n++
				}
			}
			x.number(n)
		}),
	form(`SELECT count(*) FROM sys.dm_exec_sessions WHERE session_id = «(\d+)»`, func(x *execution, words []string) {
		spid, _ := strconv.Atoi(words[1])
		x.number(count(x.server.sessions[spid] != nil))
	}),
	form(`KILL «(\d+)»`, func(x *execution, words []string) {
		spid, _ := strconv.Atoi(words[1])
		victim := x.server.sessions[spid]
		if victim == nil {
			panic(&sqlError{6106, 16, "Process ID " + words[1] + " is not an active process ID."})
		}
		victim.kill()
	}),
}

// number answers with one number.
func (x *execution) number(n int) {
	x.out.describe(column{"", kindInt})
	x.out.row(n)
}
