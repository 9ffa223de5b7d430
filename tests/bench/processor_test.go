package bench

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// processorTime is what the living processes of a name that descend from this one
// have used so far. Rates depend on what else the machine does; this hardly does.
func processorTime(name string) time.Duration {
	type process struct {
		name   string
		parent int
		ticks  int64
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
		user, _ := strconv.ParseInt(fields[11], 10, 64)
		system, _ := strconv.ParseInt(fields[12], 10, 64)
		all[pid] = process{string(text[open+1 : end]), parent, user + system}
	}
	var ticks int64
	for pid, p := range all {
		if p.name != name {
			continue
		}
		for pid != os.Getpid() && pid > 1 {
			pid = all[pid].parent
		}
		if pid == os.Getpid() {
			ticks += p.ticks
		}
	}
	const perSecond = 100 // USER_HZ, on Linux everywhere
	return time.Duration(ticks) * time.Second / perSecond
}

// perMessage is a time that a backlog took, in µs per message.
func perMessage(spent time.Duration) float64 { return float64(spent.Microseconds()) / backlog }
