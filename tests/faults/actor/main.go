// Command actor plays one part of the fault tests, as its brief says. The tests build it
// from sources that are broken on purpose; else their own binary plays the parts.
package main

import "github.com/twoqueue/twoqueue/tests/faults/parts"

func main() { parts.Main() }
