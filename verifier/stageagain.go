package verifier

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

const (
	// stageInterval is the time between rounds, most of which only check held markers. roomInterval is
	// the time between rounds while rows wait for room in the staging queue.
	stageInterval = 100 * time.Millisecond
	roomInterval  = 10 * time.Millisecond
	// dueOften and dueRarely bound the time between looks at the ledger; dueIdle is this time while no
	// row has been due yet. A delayed message is late by this time at most, plus less than a quarter
	// of a second. Two slow looks are followed by a pause of recentShare times the shorter one: so a
	// delayed message is less than a second late even if each look takes 30 ms. The walk through all
	// due rows pauses for allShare times its duration.
	dueOften    = 250 * time.Millisecond
	dueRarely   = 500 * time.Millisecond
	dueIdle     = 700 * time.Millisecond
	recentShare = 20
	allShare    = 50
	dueMost     = time.Minute // the longest pause, however long a look has taken
	// dueWindow is how far before the last look a walk through the recent due rows begins. fullLook is
	// the shortest time between two walks through all due rows, and fullPatience the longest time for
	// a page of such a walk.
	dueWindow    = 10 * time.Second
	fullLook     = 5 * time.Second
	fullPatience = 5 * time.Second
	// fullReach bounds how long before the present a walk through all rows continues after a place
	// where even one row takes too long. Each further such place divides this time by reachStep.
	fullReach = dueWindow * reachStep * reachStep * reachStep * reachStep // a week
	reachStep = 16
	// dueLimit bounds a page of a walk: no database's statement takes fewer rows. duePages bounds the
	// pages of a walk in one look. A look begins no further page after pagesTime. morePages
	// is the number of pages that the walk through all rows reads when the staging queue has room for
	// more messages.
	dueLimit  = 500
	duePages  = 10
	morePages = stagedLimit / dueLimit
	pagesTime = time.Second
	// candidatesLimit bounds the remembered rows. unpublishedLimit is the number of further remembered
	// rows of which no copy can exist.
	candidatesLimit  = 10_000
	unpublishedLimit = 2 * duePages * dueLimit

	// seenBefore is how long before a marker's look a row must have been seen: the time in which its
	// sender publishes after its COMMIT.
	seenBefore = 500 * time.Millisecond
	// markerOften and markerRarely bound the time between two markers: markerOften while markers come
	// back, markerRarely while none do.
	markerOften  = time.Second
	markerRarely = 16 * time.Second

	// claimLimit and claimBytes bound one claim.
	claimLimit = 500
	claimBytes = 1 << 20
	// idsLimit bounds the IDs in one line of the log.
	idsLimit = 20
)

// restaging bounds the groups in which messages are staged again.
var restaging = wire.Packing{Records: wire.MaxMembers, Bytes: 64 << 10}

// A stager stages carried messages again whose staged copy is lost, and carried messages that were
// never staged. It detects a lost copy by a marker: a message that a verifier publishes to the
// staging queue after it has seen the row committed, and that the same or another verifier moves to
// the waiting queue. When a verifier receives the marker from there, each copy that was in the
// queues before it has passed a verifier. That verifier has forwarded the message and deleted the
// row, or has moved the row's stage time on. So a row that is still unchanged has no copy.
//
// No message depends on a stager. A stager belongs to one session, because the end of a channel
// returns deliveries to the queues, in front of the markers.
type stager struct {
	ledger    driver.RecordedRows
	running   sideCall // for Due, Claim and Committed
	publish   func(context.Context, []bridge.Outgoing) error
	blocked   func() bool // reports whether nothing can be published
	carried   *carriedSet
	undeleted func() map[uuid.UUID]bool // rows of delivered messages that could not be deleted
	queue     string
	waiting   string
	timeout   time.Duration // of a publication
	log       *slog.Logger
	count     *atomic.Int64 // messages that were staged again

	unstageable unstageable
	staged      stagedWindow

	// Only the rounds use the fields from here up to mu.
	candidates map[uuid.UUID]candidate
	next       time.Time     // time of the next look
	took       time.Duration // duration of the last look
	recent     driver.DueRow // where the walk through the recent rows continues; zero: at its begin
	full       time.Time     // when the walk through all rows continues
	more       time.Time     // when it continues if there is room for more messages than are known
	all        driver.DueRow // where it continues; zero: at its begin
	allLimit   int           // of the pages of this walk
	reach      time.Duration // how long before the present it continues after the next slow place
	at         time.Time     // the database's time of the last look
	looked     time.Time     // our time of it
	found      bool          // a row has been due at least once
	anew       bool          // publishing was blocked: rows that were seen before no longer count
	sent       time.Time     // when the last marker was sent
	wait       time.Duration
	failing    bool // the last publication failed

	mu      sync.Mutex
	markers []heldMarker
	due     int
	overdue time.Duration // how long the first row is overdue
	told    time.Time     // when due and overdue were set
}

// A candidate is a row whose stage time has come.
type candidate struct {
	row  driver.DueRow
	seen time.Time // when it was first seen with this stage time, by the database's clock
	gone bool      // a marker has shown that no queue has a copy
}

// stageable reports whether no queue has a copy of the message.
func (c candidate) stageable() bool { return c.row.Unpublished() || c.gone }

func newStager(sh *shared, running sideCall, carried *carriedSet, blocked func() string) *stager {
	return &stager{
		ledger: sh.ledger, running: running, publish: sh.broker.Publish, carried: carried, undeleted: sh.forgetter.rows,
		blocked: func() bool { return blocked() != "" },
		queue:   sh.opts.Topology.Queue, waiting: sh.opts.Topology.WaitingQueue(),
		timeout: sh.opts.ConfirmTimeout, log: sh.log, count: &sh.stats.restaged,
		candidates: make(map[uuid.UUID]candidate), allLimit: dueLimit, reach: fullReach, wait: markerOften,
	}
}

func (g *stager) round(ctx context.Context) (time.Duration, error) {
	var errs []error
	errs = append(errs, g.passMarkersOn(ctx))
	g.anew = g.anew || g.blocked()
	looked, at, err := g.look(ctx)
	if err == nil {
		var walked time.Time
		if walked, err = g.readAll(ctx); !walked.IsZero() { // a marker need not wait for the next look
			looked, at = true, walked
		}
	}
	if looked {
		g.storeDue(at, time.Now())
	}
	g.evaluateMarkers()
	errs = append(errs, err, g.askAway(ctx))
	next := stageInterval
	waits, err := g.stage(ctx)
	if errs = append(errs, err); waits {
		next = roomInterval
	}
	if looked {
		errs = append(errs, g.sendMarker(ctx, at))
	}
	return next, errors.Join(errs...)
}

// look queries the ledger for due rows, if it is time. It returns the database's time at the begin.
// An unfinished walk continues in the next look, so a look costs little in any backlog.
func (g *stager) look(ctx context.Context) (looked bool, at time.Time, err error) {
	began := time.Now()
	if began.Before(g.next) {
		return false, at, nil
	}
	if at, err = g.readRecent(ctx); err == nil {
		g.at, g.looked, looked = at, began, true
		// A single slow look means that the machine was busy for a moment, which is no reason to pause.
		took := time.Since(began)
		g.next = time.Now().Add(pauseAfter(min(took, g.took), recentShare))
		g.took = took
	}
	interval := dueOften + rand.N(dueRarely-dueOften)
	if !g.found && !g.carried.ever.Load() {
		interval = dueIdle
	}
	if next := time.Now().Add(interval); g.next.Before(next) {
		g.next = next
	}
	return looked, at, err
}

// pauseAfter returns the pause after a walk with a given duration.
func pauseAfter(took time.Duration, share int) time.Duration {
	return min(time.Duration(share)*took, dueMost)
}

// readRecent updates the candidates with the recent due rows. Neither a backlog nor a slow walk
// through all rows hides these.
func (g *stager) readRecent(ctx context.Context) (at time.Time, err error) {
	begin := g.at
	if begin.IsZero() { // the database's time is unknown yet
		begin = time.Now().Add(-clockMargin)
	}
	if begin = begin.Add(-dueWindow); g.recent.StageAt.Before(begin) {
		g.recent = driver.DueRow{StageAt: begin}
	}
	at, _, err = g.walk(ctx, &g.recent, dueLimit, duePages, ledgerTimeout)
	return at, err
}

// readAll continues the walk through all due rows, if it is time. After rows that can be staged the
// pause ends as soon as there is room for more of them: so a backlog is staged as fast as it is
// forwarded. readAll returns the database's time at the begin.
func (g *stager) readAll(ctx context.Context) (at time.Time, err error) {
	began, pages := time.Now(), duePages
	if g.at.IsZero() {
		return at, nil
	}
	if began.Before(g.full) {
		if began.Before(g.more) || !g.needsMore() {
			return at, nil
		}
		pages = morePages
	}
	at, share, err := g.walk(ctx, &g.all, g.allLimit, pages, fullPatience)
	pause := pauseAfter(time.Since(began), allShare)
	shorter := time.Duration(float64(pause) * (1 - share))
	switch {
	case g.at.IsZero(): // the walk restarts
		return time.Time{}, err
	case err != nil:
		pause = max(pause, fullLook)
		shorter = pause
		g.passSlowPlace()
	default:
		g.allLimit = min(8*g.allLimit, dueLimit)
	}
	if g.all == (driver.DueRow{}) {
		pause = max(pause, fullLook)
		shorter = pause
		g.reach = min(reachStep*g.reach, fullReach) // further back, for the next slow place
		g.unstageable.removeGone()
	}
	g.full, g.more = time.Now().Add(pause), time.Now().Add(shorter)
	return at, err
}

// needsMore reports whether fewer stageable rows are known than there may be messages on their way.
func (g *stager) needsMore() bool { return !g.moreStageable(stagedLimit - 1) }

// moreStageable reports whether more than n candidates can be staged. It stops counting there,
// because stage calls it in every round while the targets of a backlog take nothing.
func (g *stager) moreStageable(n int) bool {
	for _, c := range g.candidates {
		if c.stageable() {
			if n--; n < 0 {
				return true
			}
		}
	}
	return false
}

// passSlowPlace is called after a page that has failed. On its way to the next due rows the
// database may pass very many deleted ones, which it keeps as long as an old transaction is open.
// So the next page reads a single row. If that fails too, the walk continues at a later stage time,
// or ends if there is none before the recent rows.
func (g *stager) passSlowPlace() {
	if g.allLimit > 1 {
		g.allLimit = 1
		return
	}
	for g.reach > g.at.Sub(g.all.StageAt)/2 {
		g.reach /= reachStep
	}
	if g.reach > dueWindow {
		g.all = driver.DueRow{StageAt: g.at.Add(-g.reach)}
	} else {
		g.all, g.reach = driver.DueRow{}, dueWindow
	}
}

// walk reads due rows from a position on and moves the position, at the end to zero. It returns the
// database's time of the first page, and the share of rows that can be staged at once.
func (g *stager) walk(ctx context.Context, position *driver.DueRow, limit, most int, patience time.Duration) (first time.Time, share float64, err error) {
	// A candidate between the begin and the end of the walk is forgotten if the walk has not read its row.
	from, upTo, seen := position.StageAt, time.Time{}, make(map[uuid.UUID]bool)
	defer func() {
		for id, c := range g.candidates {
			if at := c.row.StageAt; !seen[id] && at.After(from) && at.Before(upTo) {
				delete(g.candidates, id)
			}
		}
	}()
	began, stageable := time.Now(), 0
	for pages := 0; pages < most && (pages == 0 || time.Since(began) < pagesTime); pages++ {
		page, at, err := g.readPage(ctx, *position, limit, patience)
		if err != nil {
			return first, 0, err
		}
		if first.IsZero() {
			if first = at; at.Before(g.at) {
				return first, 0, g.beginAnew(at)
			}
			if g.anew { // a sender may have published only now
				for id, c := range g.candidates {
					g.candidates[id] = candidate{row: c.row, seen: at}
				}
				g.anew = g.blocked()
			}
		}
		for _, row := range page {
			seen[row.ID] = true
			if row.Unpublished() {
				stageable++
			}
			g.see(row, at)
		}
		if len(page) < limit {
			*position, upTo = driver.DueRow{}, at
			break
		}
		*position = page[limit-1]
		upTo = position.StageAt
	}
	return first, float64(stageable) / float64(max(1, len(seen))), nil
}

// beginAnew forgets all rows when the database's clock has gone back, as in a failover to another
// server: the old times no longer show which rows were seen before a marker.
func (g *stager) beginAnew(at time.Time) error {
	err := fmt.Errorf("the database's clock went back by %v; searching all due rows again", g.at.Sub(at))
	clear(g.candidates)
	g.at, g.full, g.more, g.recent, g.all = time.Time{}, time.Time{}, time.Time{}, driver.DueRow{}, driver.DueRow{}
	g.allLimit, g.reach = dueLimit, fullReach
	return err
}

func (g *stager) readPage(ctx context.Context, after driver.DueRow, limit int, patience time.Duration) (page []driver.DueRow, at time.Time, err error) {
	type answer struct {
		page []driver.DueRow
		at   time.Time
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errNoAnswer)
	defer cancel()
	a, err := inTime(ctx, g.running, ledgerTimeout, func(ctx context.Context) (a answer, err error) {
		a.page, a.at, err = g.ledger.Due(ctx, after, limit)
		return a, err
	})
	if err != nil {
		return nil, at, fmt.Errorf("search carried messages to stage: %w", err)
	}
	return a.page, a.at, nil
}

// see notes a due row. A new stage time counts as another row, because a verifier held the message.
// In a backlog beyond the limit only rows that can be staged at once are noted.
func (g *stager) see(row driver.DueRow, at time.Time) {
	g.found = true
	g.unstageable.see(row.ID)
	limit := candidatesLimit
	if row.Unpublished() {
		limit += unpublishedLimit
	}
	if c, ok := g.candidates[row.ID]; ok && c.row.StageAt.Equal(row.StageAt) || !ok && len(g.candidates) >= limit {
		return
	}
	g.candidates[row.ID] = candidate{row: row, seen: at}
}

// stage claims and publishes candidates without a copy in a queue, the longest due first, as many
// as there is room for. It reports whether others wait for room.
func (g *stager) stage(ctx context.Context) (waits bool, err error) {
	room, roomBytes := g.staged.room(time.Now())
	if g.anew || g.blocked() {
		return false, nil
	}
	if roomBytes <= 0 {
		return g.moreStageable(0), nil
	}
	if room < claimLimit && g.moreStageable(room) { // soon there is room for a full claim
		return true, nil
	}
	var rows []driver.DueRow
	for _, c := range g.candidates {
		if c.stageable() {
			rows = append(rows, c.row)
		}
	}
	slices.SortFunc(rows, func(a, b driver.DueRow) int {
		return cmp.Or(a.StageAt.Compare(b.StageAt), bytes.Compare(a.ID[:], b.ID[:]))
	})
	left := g.undeleted()
	for len(rows) > 0 && room > 0 && roomBytes > 0 {
		if g.blocked() { // before a claim moves a stage time in vain
			return false, nil
		}
		most, mostBytes := min(claimLimit, room), int64(min(claimBytes, roomBytes))
		if g.failing { // only one stage time moves in vain
			most = 1
		}
		var batch []driver.DueRow
		size := int64(0)
		for len(rows) > 0 && len(batch) < most && (size == 0 || size+rows[0].Bytes <= mostBytes) {
			if row := rows[0]; !left[row.ID] && !g.carried.has(row.ID) {
				batch, size = append(batch, row), size+row.Bytes
			} else { // it has a copy, so it needs another marker
				g.candidates[row.ID] = candidate{row: row, seen: g.candidates[row.ID].seen}
			}
			rows = rows[1:]
		}
		room, roomBytes = room-len(batch), roomBytes-int(size)
		if err := g.claim(ctx, batch); err != nil {
			return false, err
		}
	}
	return len(rows) > 0, nil
}

// askAway queries the ledger for messages on their way if none has been done here for long.
// Messages whose rows are gone have left the queues.
func (g *stager) askAway(ctx context.Context) error {
	silent := g.staged.silent(time.Now())
	if len(silent) == 0 {
		return nil
	}
	there, err := inTime(ctx, g.running, ledgerTimeout, func(ctx context.Context) ([]uuid.UUID, error) {
		there, _, err := g.ledger.Committed(ctx, silent)
		return there, err
	})
	if err != nil {
		return fmt.Errorf("look up %d staged messages: %w", len(silent), err)
	}
	stay := make(map[uuid.UUID]bool, len(there))
	for _, id := range there {
		stay[id] = true
	}
	for _, id := range silent {
		if !stay[id] {
			g.staged.noteDone(id)
		}
	}
	return nil
}

func (g *stager) claim(ctx context.Context, batch []driver.DueRow) error {
	if len(batch) == 0 {
		return nil
	}
	unpublished := make(map[uuid.UUID]bool)
	for _, row := range batch {
		unpublished[row.ID] = row.Unpublished()
		delete(g.candidates, row.ID)
	}
	claimed, err := inTime(ctx, g.running, ledgerTimeout, func(ctx context.Context) ([]driver.Carried, error) {
		return g.ledger.Claim(ctx, batch)
	})
	if err != nil {
		return fmt.Errorf("claim %d carried messages: %w", len(batch), err)
	}
	if len(claimed) == 0 {
		return nil
	}
	g.staged.add(claimed)
	staged, err := g.publishCarried(ctx, claimed)
	g.staged.keep(claimed, staged)
	g.failing = err != nil
	if len(staged) > 0 {
		g.count.Add(int64(len(staged)))
		g.unstageable.staged(staged)
		lost := 0
		for _, id := range staged {
			if !unpublished[id] {
				lost++
			}
		}
		g.log.Info("carried messages are staged", "messages", len(staged),
			"never_published", len(staged)-lost, "lost", lost, "message_ids", someIDs(staged))
	}
	if err != nil {
		return fmt.Errorf("stage %d carried messages, which are due again later: %w", len(claimed)-len(staged), err)
	}
	return nil
}

func someIDs(ids []uuid.UUID) string {
	var text []string
	for _, id := range ids[:min(len(ids), idsLimit)] {
		text = append(text, id.String())
	}
	return strings.Join(text, " ")
}

// publishCarried publishes claimed messages, and returns the IDs that the broker has confirmed. If
// the broker refuses one for good, all are published alone, which identifies it. The refused
// message stays in its row, whose stage time has moved on.
func (g *stager) publishCarried(ctx context.Context, claimed []driver.Carried) (staged []uuid.UUID, err error) {
	claimed = g.stageable(claimed)
	ids := func(all []driver.Carried) (ids []uuid.UUID) {
		for _, c := range all {
			ids = append(ids, c.ID)
		}
		return ids
	}
	err = g.restage(ctx, claimed...)
	if err == nil || !refusedForGood(err) {
		if err != nil {
			return nil, err
		}
		return ids(claimed), nil
	}
	for _, c := range claimed {
		switch err := g.restage(ctx, c); {
		case err == nil:
			staged = append(staged, c.ID)
		case refusedForGood(err):
			g.refuse(c.ID, err)
		default:
			return staged, err
		}
	}
	return staged, nil
}

// stageable returns the messages that can be staged.
func (g *stager) stageable(claimed []driver.Carried) (stageable []driver.Carried) {
	for _, c := range claimed {
		message, err := wire.ReadRecord(g.ledger.Identity(), c.Message)
		switch {
		case err != nil:
		case message.ID != c.ID:
			err = fmt.Errorf("the record has the ID %s", message.ID)
		case message.OrderKey != "":
			err = errors.New("the message has an order key, so no row may carry it")
		case !message.Carried:
			c.Message, err = g.marked(c.Message)
		}
		if err != nil {
			g.refuse(c.ID, err)
			continue
		}
		stageable = append(stageable, c)
	}
	return stageable
}

// marked returns a record with HeaderCarried. Records of messages that an earlier release had
// parked lack it, and without it a verifier cannot recognize a carried message.
func (g *stager) marked(record []byte) ([]byte, error) {
	message, err := wire.Alone(g.ledger.Identity(), record)
	if err != nil {
		return nil, err
	}
	message.Headers[wire.HeaderCarried] = true
	return wire.EncodeRecord(message), nil
}

// refuse logs once that a message cannot be staged.
func (g *stager) refuse(id uuid.UUID, err error) {
	if g.unstageable.add(id) {
		g.log.Error("carried message cannot be staged and stays in its row", "message_id", id.String(), "error", err)
	}
}

// restage publishes messages to the staging queue, in groups. Each keeps the time of staging in its
// record.
func (g *stager) restage(ctx context.Context, carried ...driver.Carried) error {
	var records [][]byte
	for _, c := range carried {
		records = append(records, c.Message)
	}
	staged, err := restaging.Pack(g.ledger.Identity(), records)
	if err != nil {
		return err
	}
	for i := range staged {
		staged[i].Headers[wire.HeaderRestaged] = true
	}
	return g.send(ctx, staged...)
}

// send publishes to the staging queue.
func (g *stager) send(ctx context.Context, publishings ...amqp.Publishing) error {
	return g.sendTo(ctx, g.queue, publishings...)
}

func (g *stager) sendTo(ctx context.Context, queue string, publishings ...amqp.Publishing) error {
	if len(publishings) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	out := make([]bridge.Outgoing, len(publishings))
	for i, p := range publishings {
		out[i] = bridge.Outgoing{Target: bridge.Target{RoutingKey: queue}, Publishing: p}
	}
	return g.publish(ctx, out)
}

// refusedForGood reports whether err means that the broker will never accept one of the messages.
// Missing rights do not count: an operator will grant them.
func refusedForGood(err error) bool {
	refusal := bridge.Refusal(err)
	return refusal != nil && refusal.Code != amqp.AccessRefused || errors.Is(err, bridge.ErrInvalidMessage) || errors.Is(err, bridge.ErrMalformed)
}

// storeDue stores the result of the last look, for State.
func (g *stager) storeDue(at, now time.Time) {
	var first time.Time
	for _, c := range g.candidates {
		if first.IsZero() || c.row.StageAt.Before(first) {
			first = c.row.StageAt
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.due, g.overdue, g.told = len(g.candidates), 0, now
	if !first.IsZero() {
		g.overdue = max(0, at.Sub(first))
	}
}

// state returns, for State, how many carried rows are due as far as they are remembered, for how
// long the first of them has been due, and how many cannot be staged.
func (g *stager) state(now time.Time) (due int, overdue time.Duration, unstageable int) {
	if g == nil {
		return 0, 0, 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.due > 0 {
		due, overdue = g.due, g.overdue+now.Sub(g.told)
	}
	return due, overdue, g.unstageable.count()
}
