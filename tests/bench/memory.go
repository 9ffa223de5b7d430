package main

import (
	"fmt"
	"os"
	"strings"
)

// largestMemory is the most resident memory that a process has had, in bytes; 0 if
// there is no such process.
func largestMemory(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			var kB int
			if _, err := fmt.Sscan(rest, &kB); err != nil {
				return 0
			}
			return kB << 10
		}
	}
	return 0
}
