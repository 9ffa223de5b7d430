// Command actor plays one part of the fault tests, according to its brief. The tests build it from
// sources that are broken on purpose; otherwise the test binary itself plays the parts.
package main

import "github.com/twoqueue/twoqueue/tests/faults/parts"

func main() { parts.Main() }
