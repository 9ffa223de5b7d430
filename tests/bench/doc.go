// Bench compares the bridge with its common alternatives, in one run on private servers. Figures of
// different runs or machines say little; ratios within one run say more. The processor time per
// message hardly depends on the machine's other load.
//
//	./tests/bench/run                     everything, about ten minutes
//	./tests/bench/run -long               longer measurements, more rounds and messages
//	./tests/bench/run -help               scenarios, contenders, flags
//	./tests/bench/run -run live,latency   some scenarios
//
// The short run gives a first impression: two rounds of 1.5 seconds a point, and one round for
// contenders that are far behind. Quote figures only from a run with -long.
//
// Where Go and the servers are installed, run go run . in this folder instead. It writes results.md
// and a picture, results.svg, into the folder out, and logs its progress with each round's values
// to standard error. To draw the picture again from results.md without a run:
//
//	go run . -draw results.md
//
// # While working on speed
//
// One contender at one point, in a few seconds:
//
//	go run . -run live -workers 32 -only '^twoqueue$' -rounds 1 -window 5s
//
// The scenarios mariadb and sizes also start a MariaDB. The scenario outage restarts the broker, so
// it comes last.
//
// To compare two settings of the verifier, run twice with -out and compare the processor times.
// Variables that start with BRIDGE_ are passed on to the verifier.
//
// # Equal conditions
//
// All contenders share the servers and their settings (the databases wait for the disk). Each
// contender and round gets a fresh database and fresh queues. Every transaction inserts the same
// business row, or runs the same five statements. The messages are random text that no database can
// compress. The target is a quorum queue, whose consumer counts the deliveries. The application is
// its own process, as is the relay or verifier. Both use Go's defaults, except that every relay
// collects garbage as seldom as the verifier. Rounds alternate: A B A B.
//
// The committed and delivered rates are measured within one window, in which the application
// neither starts nor stops. A message that is committed in the window but has not come seconds
// later counts as slower than all others. A contender that delivers an uncommitted message ends the
// run.
package main
