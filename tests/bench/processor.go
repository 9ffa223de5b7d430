package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// processorTimes are the processor times of groups of processes so far, including processes that
// have ended. Rates depend on the machine's other load; processor times hardly do.
type processorTimes struct {
	broker, database, application, relay time.Duration
}

func (a processorTimes) minus(b processorTimes) processorTimes {
	return processorTimes{a.broker - b.broker, a.database - b.database, a.application - b.application, a.relay - b.relay}
}

func (a processorTimes) plus(b processorTimes) processorTimes {
	return processorTimes{a.broker + b.broker, a.database + b.database, a.application + b.application, a.relay + b.relay}
}

func (a processorTimes) total() time.Duration { return a.broker + a.database + a.application + a.relay }

// readProcessorTimes reads the times from the system's list of processes. application is a process
// ID, or 0 if there is none.
func readProcessorTimes(application int, relays ...*child) processorTimes {
	relaying := make(map[int]bool)
	for _, relay := range relays {
		if relay != nil {
			relaying[relay.cmd.Process.Pid] = true
		}
	}
	type process struct {
		name   string
		parent int
		used   time.Duration
	}
	all := make(map[int]process)
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		open, end := strings.IndexByte(string(text), '('), strings.LastIndexByte(string(text), ')')
		fields := strings.Fields(string(text[end+1:]))
		parent, _ := strconv.Atoi(fields[1])
		var ticks int64
		for _, field := range fields[11:15] { // user, system, and both of the children that have ended
			n, _ := strconv.ParseInt(field, 10, 64)
			ticks += n
		}
		const perSecond = 100 // USER_HZ, on Linux everywhere
		all[pid] = process{string(text[open+1 : end]), parent, time.Duration(ticks) * time.Second / perSecond}
	}
	var t processorTimes
	for pid, p := range all {
		ancestor := pid
		for ancestor != os.Getpid() && ancestor > 1 {
			ancestor = all[ancestor].parent
		}
		if ancestor != os.Getpid() {
			continue // not ours
		}
		switch {
		case pid == application:
			t.application += p.used
		case relaying[pid]:
			t.relay += p.used
		case p.name == "beam.smp":
			t.broker += p.used
		case p.name == "postgres" || p.name == "mariadbd":
			t.database += p.used
		}
	}
	return t
}

// perMessage returns the metrics of processor time for n messages.
func (a processorTimes) perMessage(n int) []any {
	return []any{
		"CPU µs per message", perMessage(a.total(), n),
		"broker", perMessage(a.broker, n),
		"database", perMessage(a.database, n),
		"application", perMessage(a.application, n),
		"relay", perMessage(a.relay, n),
	}
}

// loadAverage returns the machine's load average of the last minute: processes that ran or waited
// to run.
func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

// largestMemory returns the largest resident memory that any relay has had, in bytes; 0 if there is
// no relay.
func largestMemory(relays ...*child) (most int) {
	for _, relay := range relays {
		if relay == nil {
			continue
		}
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", relay.cmd.Process.Pid))
		_, rest, _ := strings.Cut(string(text), "VmHWM:")
		var kB int
		if _, err := fmt.Sscan(rest, &kB); err == nil {
			most = max(most, kB<<10)
		}
	}
	return most
}
