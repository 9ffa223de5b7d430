package tds

import "strings"

// A plan is kept for a text and the declaration of its parameters. For each table that a statement
// reads, it has how often the table's statistics had become stale when the statement was compiled.
type plan map[string]int

// stale is the number of changes after which a small table's statistics are stale.
const stale = 500

// Compilations returns the number of compilations of texts with parameters, and of their
// statements.
func (s *Server) Compilations() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.compilations
}

// planOf returns the plan of a text with parameters.
func (x *execution) planOf(text, declaration string) plan {
	key := strings.Join([]string{x.db.name, declaration, text}, "\n")
	if x.server.plans[key] == nil {
		x.server.plans[key] = make(plan)
		x.server.compilations++
	}
	return x.server.plans[key]
}

// readBy compiles the current statement anew if the statistics of a table that it reads have become
// stale, unless a hint keeps the plan.
func (t *table) readBy(x *execution) {
	if x.plan == nil || strings.Contains(x.text, "KEEPFIXED PLAN") {
		return
	}
	key, times := t.name+"\n"+x.text, t.changes/stale
	if t.noRecompute {
		times = 0
	}
	if before, compiled := x.plan[key]; compiled && before != times {
		x.server.compilations++
	}
	x.plan[key] = times
}
