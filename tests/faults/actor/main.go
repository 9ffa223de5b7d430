// Command actor plays one part of the fault tests, as its brief says. The tests
// build it, also from sources that are broken on purpose.
package main

import "github.com/twoqueue/twoqueue/tests/faults/parts"

func main() { parts.Main() }
