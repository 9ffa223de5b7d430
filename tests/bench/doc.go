// Bench compares the bridge with what people would pick instead, in one run on
// private servers. Figures of different runs or machines say little; ratios within
// one run say more, and the processor time per message hardly depends on what else
// the machine does.
//
//	./tests/bench/run                     everything, about ten minutes
//	./tests/bench/run -long               longer measurements, more rounds and messages
//	./tests/bench/run -help               scenarios, contenders, flags
//	./tests/bench/run -run live,latency   some scenarios
//
// The short run is a look: two rounds of 1.5 seconds a point, one of those that are far
// behind. Take figures to be quoted from a run with -long.
//
// In this folder, where Go and the servers are installed, go run . does the same.
// It writes results.md and a picture, results.svg, into the folder out; what happens
// meanwhile, each round's values among it, goes to standard error. The picture is drawn from
// results.md, and again without a run by
//
//	go run . -draw results.md
//
// # While working on speed
//
// One contender at one point, in a few seconds:
//
//	go run . -run live -workers 32 -only '^twoqueue$' -rounds 1 -window 5s
//
// The scenarios mariadb and sizes also start a MariaDB. The scenario outage ends with the broker
// started again, so it comes last.
//
// Two settings of the verifier side by side: variables that start with BRIDGE_ go
// on to it, so run twice with -out and compare the processor times.
//
// # What is equal for all
//
// The servers and their settings (the databases wait for the disk); a fresh database
// and fresh queues for each contender and round; the business row that every transaction
// inserts, or its five statements; the messages, of random text that no database can
// compress; a quorum queue as the target, and its consumer, which counts what is delivered.
// The application is a process of its own, as is the relay or verifier, both with
// Go's defaults, but that every relay collects garbage as seldom as the verifier.
// Rounds alternate: A B A B.
//
// The committed and delivered rates are those within one window, in which the
// application neither starts nor stops; what is committed then but has not come
// seconds later counts as slower than everything else. A contender that delivers what was
// not committed ends the run.
package main
