// Package faults shows the claim, delivered if and only if committed, while
// everything around fails.
//
// Senders, verifiers and receivers run as processes, with a RabbitMQ and a PostgreSQL,
// MariaDB or MySQL of their own and a proxy in every link. A plan, drawn from a seed and
// printed, kills, freezes, cuts and deletes. Then everything is mended, the
// traffic comes to its end, and package world judges by what the databases hold.
//
//	go test ./tests/faults -run TestShort -faults.seed 7 -v          the plan of one seed
//	go test ./tests/faults -run TestLong -faults.for 1h -timeout 2h -v   many seeds, heavy traffic
//	… -faults.database mysql                                            on a MariaDB, or a MySQL
//	go test ./tests/faults -run TestLongRunUnderLocal -faults.for 30m -timeout 1h -v   local faults only
//	./tests/matrix sid -- ./tests/faults -run TestLongRunUnderFaultsLoses -faults.for=15m -faults.database=mysql -v
//
// The last one runs on the servers of a newer Debian release (tests/README.md lists them): on sid
// MySQL 9.7, or PostgreSQL 18 with -faults.database=postgres, and RabbitMQ 4.3. For longer
// runs than 25 minutes add -timeout. The diaries of -faults.diaries must be in a folder inside
// this repository: no other one is the same inside and outside of the release's root.
//
// A failure prints the plan, the course of the faults and the history of messages that it
// is about; with
// -faults.diaries DIR the whole diary is kept: what every process and both servers
// said, in one file in order of time. A plan is repeatable, what meets it is not:
// the same seed does the same things to other moments of the traffic.
//
// What it cannot see: a power cut (SIGKILL leaves what the kernel has taken), packets
// lost below TCP (the proxy loses bytes of connections, and both ends get them
// acknowledged), and a loss that the deletion of a queue at the same time explains. A
// message counts as lost with the staging queue if it was placed before the deletion, its
// row is still there, and no verifier has heard the target's confirm. It counts as lost
// with its target's queue if a verifier has heard the confirm, and knew that the message
// was committed before the deletion; no more are lost so than the queue can have held.
// The totals of a run count both.
//
// Some messages of a plan are delayed, by five seconds at most, and their senders cancel some of these:
// no delayed message arrives before its time, and none that a Cancel has taken back arrives at all, because
// the cancelling transaction deletes its order.
//
// Half of the senders carry their messages in the rows. A carried message counts as lost whatever
// was deleted, and no such row may be left at the end. The totals count the copies that verifiers
// have staged, and how many of them were needless at most.
//
// The closing lines of a run also tell how many messages no fault touched between their commit
// and two seconds later, how many of these arrived within the two seconds, and how long the
// slowest took. A message has arrived when its target has confirmed it. A message counts as touched
// only if a fault names its target, its row, its sender, or a verifier that has had it, or if a
// fault touches all messages, as a killed broker does; until five seconds after the fault's end.
// Trouble in package world has the list. A verifier has had a message if its own diary names the
// message, or if the broker delivers the message again.
// The commit counts from when the sender heard of it. A message of a transaction that was open for
// more than half a second is not counted, because a verifier may have set it aside.
//
// Most faults of the usual plan touch all messages, so no such run fails by these figures. A
// local plan has faults only that touch a target, rows, some messages, or one process beside
// others: locked rows, messages that no client can read or publish again, a limit of connections,
// full, missing and silent targets, slow transactions, and one verifier or sender that is killed,
// frozen or cut off, or whose host vanishes. There the share in time is asserted: 99 % in a long
// run, 90 % in a short one, since other tests may load the machine. And no session of a verifier
// may end that no fault names. The late ones beside a busy machine's are messages that a verifier
// published behind the first one that its channel had for a silent quorum queue: package verifier
// says what it then waits for. TestUntouchedMessagesArriveWhileOthersAreHeld asserts the same by
// signals in place of a clock: while rows are locked and a queue is full, all other messages
// arrive.
//
// Failovers have tests of their own: a primary is killed under the traffic, its replica is
// promoted, and all clients are led to it.
//
// TestMutantsAreCaught runs against a build of the product that breaks one rule of package bridge
// at a time. It shows that the harness can catch a loss, and that a test which
// tests/README.md names for a rule fails without the rule, where no loss tells.
package faults
