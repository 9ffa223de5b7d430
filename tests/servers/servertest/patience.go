package servertest

import "time"

// Patience bounds every wait of a test for something that must happen. It only says
// how late a failure is told: a correct run must pass on a machine that is shared and
// ten times slower.
const Patience = 3 * time.Minute
