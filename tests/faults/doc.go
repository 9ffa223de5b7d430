// Package faults tests the guarantee while everything around fails: a message is delivered if and
// only if its transaction commits.
//
// Senders, verifiers and receivers run as processes, with their own RabbitMQ and their own
// PostgreSQL, MariaDB or MySQL, and a proxy in every link. A plan, which is drawn from a seed and
// printed, kills, freezes, cuts and deletes. Then all faults end, the traffic drains, and package
// world judges by the contents of the databases and queues. A plan is repeatable, a run is not: the
// same seed injects the same faults, at other moments of the traffic.
//
//	go test ./tests/faults -run TestShort -faults.seed 7 -v          the plan of one seed
//	go test ./tests/faults -run TestLong -faults.for 1h -timeout 2h -v   many seeds, heavy traffic
//	… -faults.database mysql                                            on a MariaDB, or a MySQL
//	go test ./tests/faults -run TestLongRunUnderLocal -faults.for 30m -timeout 1h -v   local faults only
//	./tests/matrix sid -- ./tests/faults -run TestLongRunUnderFaultsLoses -faults.for=15m -faults.database=mysql -v
//
// The last command runs on the servers of a newer Debian release (tests/README.md lists them). For
// runs longer than 25 minutes add -timeout. A failure prints the plan, the course of the faults and
// the history of the messages concerned. With -faults.diaries DIR, a folder inside this repository,
// the output of every process and both servers is kept too.
//
// The tests cannot see a power cut, since SIGKILL loses nothing that the kernel has accepted. They
// cannot see packets lost below TCP either: the proxy loses bytes of connections, and both ends get
// them acknowledged. And they cannot see a loss that the deletion of a queue at the same time
// explains. A message counts as lost with the staging queue if it was placed before the deletion,
// its row is still there, and no verifier has received the target's confirm. It counts as lost with
// its target's queue if a verifier has received the confirm, and had looked it up as committed
// before the deletion. The number of such losses is limited by the number of messages that the
// queue can have held. The totals of a run count both kinds.
//
// Some messages are delayed, and their senders cancel some of these: no delayed message may arrive
// before its time, and no cancelled message at all. Half of the senders carry messages in their
// rows. A carried message that does not arrive counts as lost even if its queue was deleted, and no
// carried row may be left at the end.
//
// The closing lines of a run also report how many messages no fault touched between their commit
// and two seconds later, and how many of these arrived within the two seconds. A message has
// arrived when its target has confirmed it. A message counts as touched only if a fault names its
// target, its row, its sender, or a verifier that has had it, or if a fault touches all messages,
// as a killed broker does; each until five seconds after the fault's end. Trouble in package world
// has the list. A message of a transaction that was open for more than half a second is not
// counted, because a verifier may have set it aside.
//
// Most faults of the usual plan touch all messages, so such a run never fails because of these
// figures. A local plan has only faults that touch a target, rows, some messages, or one process
// among others. Its run asserts the share in time: 99 % in a long run, 70 % in a short one, since
// other tests may load the machine. It also asserts that no session of a verifier ends unless a
// fault names that verifier.
//
// Failovers have their own tests: the primary is killed during the traffic, its replica is
// promoted, and all clients are led to the replica.
//
// TestMutantsAreCaught runs against a build of the product that breaks one rule of package bridge
// at a time. It shows that the harness detects a loss. For rules whose violation loses no message,
// it shows that the test that tests/README.md names for the rule fails without the rule.
package faults
