// Package verifier judges staged messages: it forwards those whose transaction has
// committed and drops those whose transaction has rolled back.
//
//	ledger, err := postgres.Open(ctx, db) // or sqlserver, mysql, sqlite; migrate.Ledger has made its tables
//	broker, err := bridge.Dial(ctx, "amqp://verifier:secret@localhost/", nil)
//	options := &verifier.Options{
//		Allow:   []verifier.Allow{{Exchange: "orders", RoutingKey: "*"}},
//		Watcher: postgresinspect.New(ledger), // the log says whose transaction holds a message up
//	}
//	db.SetMaxIdleConns(options.Connections()) // database/sql keeps 2
//	v, err := verifier.New(ledger, broker, options)
//	err = v.Run(ctx) // makes the queues; until ctx ends, then drains
//
// A verifier runs inside a service of yours, or as the program cmd/verifier, with a configuration from
// the environment. Package verifier/ops has metrics, readiness and a status page for both, package
// verifier/otelverifier the spans. Any number of verifiers may consume one staging queue, of both
// kinds at once; none of them holds state that matters. Package
// bridge describes the protocol, with its words and rules. Package sender is the other side.
//
// # What it promises, and what it does not
//
// A message of a committed transaction arrives at its target at least once, or in the dead
// queue. While it is larger than the broker takes, it stays in its queue. A message of a
// rolled-back transaction never arrives. All copies have the same ID. Messages without an order
// key do not keep their order: each is forwarded when its own transaction is known to have
// committed and its own target takes it. The verifier does not read bodies.
//
// # What happens to a message
//
//   - Lookup. Deliveries gather into batches. One statement that never waits asks which of the
//     IDs are in the ledger. Those have committed.
//   - Waiting room. The other messages may be uncommitted, rolled back, or committed a moment
//     ago. At most Options.Settlers of them are settled at a time, each by a statement that
//     waits on the row lock of the open transaction. Only this statement may say 'rolled back'.
//     The rest of the room is looked up again with later batches, and whenever a transaction
//     has ended, since its messages share its fate. A message that has waited for 100 ms is
//     slow: it is looked up only every 100 ms, and only half of the settlers may wait for slow
//     messages. So many open transactions cost the other messages little.
//   - Evidence. A message is dropped only after the session has found committed a message whose
//     row was recorded since the session began (see Copies of the database).
//   - Waiting queue. A message that waits longer than Options.Patience, or for which the room
//     is too full, is copied to the waiting queue with a confirm and then acked. Small messages
//     go there in groups. Verifiers consume that queue too, on a channel and with a prefetch of
//     its own. While it holds more messages than a verifier may hold, they go round: each is
//     looked up and copied to the queue's end. The longer a round takes, the shorter a message
//     stays with the verifier, down to 50 ms. So a message behind very many others is soon
//     seen. A transaction that stays open for hours, with more messages than fit into memory,
//     delays its own messages only. No message is held longer than the broker's consumer
//     timeout allows (Options.HandBack).
//   - Forward. The message is published to its target, mandatory and persistent,
//     without waiting for others. It is safe once it is confirmed and was not
//     returned.
//   - Forget, then ack. Rows are deleted in batches, then the messages are acked, many at once.
//     After a crash in between, a message is redelivered, its row is absent, and it is dropped.
//     A row that cannot be deleted keeps no message waiting ('Rows that cannot be deleted').
//
// A delivery may be a group of messages (package wire). Each is judged by itself,
// and the delivery is acked when the last of them is done.
//
// The cost of all this is per burst, not per message. Up to 500 messages a second, lookups do
// not gather. From there to 1,500 a second they gather for up to 6 ms. From 1,000 a second on,
// a message is settled by itself only when it is 25 ms old. Deletes gather for 30 ms at every
// rate, since nobody waits for them. So if the verifier is killed, the messages of those 30 ms
// come twice.
//
// # Copies of the database
//
// A copy of the database, and an old primary that comes back, have the ledger's identity and pass
// the proof, and every message that was committed elsewhere since looks rolled back there. So a
// session believes only the server that its proof covers (driver.Proven), and drops nothing before
// it has evidence: a message that it finds committed, that no verifier has staged again
// (wire.HeaderRestaged), and whose row was recorded after the session began, by the database's
// clock. It asks with one more statement for each batch of committed messages, until it has it. On
// an own table, which has no such time, the message's time of staging must be a minute later than
// the session's begin.
//
// Until then messages that look rolled back are withheld. They take the room of waiting messages,
// and no settler. Further ones go to the waiting queue and round, ever more slowly while no
// committed message comes: up to 30 s each round. Those with an order key hold their key. If a
// verifier holds 500 of one ordered queue, that queue waits for evidence from another. With
// evidence, all are settled again. State.Withheld counts them; the log tells after
// Options.ExplainAfter, and when the evidence comes. Where nothing commits, they simply wait.
//
// # Messages in order
//
// Messages with an order key come from the ordered queues (Options.Topology.OrderedShards).
// Each of these queues has a single active consumer: one verifier gets all its messages. When
// that verifier goes, another takes over. Package bridge says what is promised. The promise
// rests on these facts:
//
//   - The broker delivers an ordered queue in order. When a consumer goes with its channel,
//     the queue delivers what was unacked again, at its old place (measured on 3.10.8 and
//     4.3.6).
//   - Messages are looked up and settled in any order, together with all others. They are
//     forwarded key by key in the order of the queue: a message waits until every earlier one
//     of its key is dropped, or confirmed at its target or in the dead queue. So one message of
//     each key is on its way at a time, and the keys do not wait for each other.
//   - Nothing of an ordered queue is nacked or set aside. A verifier gives messages back only
//     by closing the queue's channel. It does so when it has held a message for
//     Options.HandBack. It also does so when a message had no room in Options.MaxBytes, half of
//     the room is free again, and the message now fits. First it finishes the messages that are
//     on their way, except those for held targets, which may come twice. The session then goes
//     on, with a new channel for that queue.
//   - A verifier that was frozen or cut off also forwards in order, and awaits each confirm
//     before it forwards the next of a key. So whatever another verifier does meanwhile, the
//     first copy of a message arrives before the first copy of the next.
//
// In a RabbitMQ cluster before 4.2.6, deliveries that got lost on the way to a channel and are
// fetched again from the queue may come out of order (rabbitmq-server, pull request 14386;
// fixed by 15883 and 16008).
//
// An open transaction holds its key, as does a target that is full or missing. The messages
// behind it take room: when there are 500 of them, or they fill their share of
// Options.MaxBytes, they hold the whole ordered queue. State.Keys tells which keys wait, and
// for which message. When a message goes to the dead queue its key goes on, unless
// Options.HoldKeys is set. A message that is larger than the broker now takes holds its key.
//
// # Orphan rows
//
// Rows older than Options.SweepAge that carry no message are orphans: somebody has purged or
// deleted a queue, and their messages are gone. The verifier removes them at the start of a session
// and every ten minutes, if the queues are empty. (With Options.HoldKeys it must also have received
// something from every ordered queue.) If such a message turns up after all, it goes to the dead
// queue; package driver shows why it is never dropped.
//
// # Carried messages
//
// A ledger row may carry its message. The sender's commit then waits for no confirm, so the staged
// copy may be lost, and the row is no orphan. As long as the row exists, verifiers stage the message
// again, as a side job:
//
//   - Twice a second or more it looks for rows whose stage time has come. One look reads thousands
//     of rows at most; in a longer backlog the next looks go on. Each look sees the rows of the
//     last seconds first, and two slow ones are followed by a pause of 20 times the shorter one. The
//     walk through all rows has pauses of its own, 50 times its duration (5 s to a minute), and
//     passes a place where the database takes too long. The verifier claims a row whose sender has
//     published nothing, and stages its message at once. Where the walk meets such rows its pauses
//     are shorter by their share.
//   - For other rows it publishes a marker (wire.Marker) to the staging queue when it has seen them
//     for half a second. The verifier that receives a marker holds it for half a second, and moves
//     it to the waiting queue. The verifier that receives it from there holds it for a second. By
//     then each copy that was in the queues before the marker has reached a verifier, which has
//     deleted the row or moved its stage time on. So a row has no copy in a queue if this verifier
//     saw it before the marker was sent, does not hold its message, and finds its stage time
//     unchanged. The verifier claims such rows and stages their messages.
//   - A verifier stages the longest due messages first, and keeps at most 2,000 of them, of 16 MiB
//     in all, on their way to their targets. As these are forwarded it stages the next. So a backlog
//     waits for no look, and new messages wait behind few others. Other verifiers forward some of
//     them. A message that is done shows that all staged in earlier batches have left the staging
//     queue. If none is done for a second, the verifier asks the ledger which rows are gone. If none
//     is for ten seconds, as where all wait with other verifiers for a missing target, it stages
//     others.
//   - A claim moves the stage time by the age of the row, by 10 s at least and by 10 min at most,
//     before the message is published. If the verifier dies in between, the row is due again then.
//   - A verifier that holds a committed message for half a second, or for a held target, moves its
//     stage time on in the same way (Touch), and does so before it sets the message aside.
//   - If a copy comes while the verifier holds the message, the copy joins it. The copy is acked if
//     the message is forwarded or set aside, and goes back to its queue if the message does. The
//     copy is judged by itself if the message is dropped, and, if it has come from the waiting
//     queue, also if the message is set aside: it may be the very copy that was put there.
//
// A lost message arrives about five seconds after its commit, or when the backlog that it was in
// is worked off. A verifier that is killed or frozen may cost as many needless copies as it holds
// messages. A copy whose message has been forwarded finds no row and is dropped. A duplicate, with
// the same ID, is possible where two verifiers hold both at the same moment, and where a row could
// not be deleted. A message that the broker refuses for good stays in its row; the log names it.
// Stats.Restaged counts what was staged again, State.Due and State.Overdue tell what is due.
//
// Until the first carried row or message is seen, a look comes every 0.7 s. An own table carries nothing.
//
// # The audit queue
//
// If Options.Topology.Audit is set, copies of messages that were dropped (rolled back, or forwarded
// before) are kept in the audit queue.
//
// # Targets that take nothing
//
// A target may be full (nack), missing (return, or 404), or never confirm. Such a target is
// held: its messages wait aside, it is tried again with backoff, and no other target waits for
// it. A missing target is given up after Options.Unroutable.
//
// An exchange nacks a message if one of its queues is full, although the others take it, and does
// not say which. So a nack of an exchange keeps no other message from it: each is published at
// once, and again after pauses of its own, and goes to the dead queue after Options.Copies
// attempts. A nack of a target queue (by the default exchange) means that no queue has the message:
// it is tried again without a bound.
//
// A target counts as one that never confirms when messages published to other targets a second
// later are confirmed, or when it nacks after a second or more, as RabbitMQ does for a quorum
// queue without a leader. It is then tried with one message at a time, over a connection of its
// own, until it takes one. A burst of 32 messages to such a target can make RabbitMQ stop reading the whole
// connection within that second. So a target with such a burst is also held when the whole
// connection has been silent for a second. Messages to other targets that were published after
// the last confirmed one are then published again on another connection, and may be delivered
// twice, with the same ID. If nothing that was published after the burst began is confirmed,
// the target cannot be told from the others: then all wait for Options.ConfirmTimeout, once.
//
// A publish that the broker refuses with an error closes its channel. What happened to the
// other messages in flight there is unknown. All of them are published again one at a time,
// which shows the culprit. The others may be delivered twice, with the same ID.
//
// A session's end forgets no culprit: the next session begins with the held targets, how long
// each has been missing, and the exchanges whose messages close a channel. A message that is
// delivered again goes on counting towards Options.Unroutable where its target stands. The time
// without a session does not count.
//
// # Connections to the broker
//
// A verifier needs two connections: one to consume, one to publish. It opens a third for
// messages that are published alone, one for each of at most four targets that it tries after
// they did not confirm, one for carried messages and markers, and it leaves at most eight
// connections to messages that have not been confirmed: MostBrokerConnections in all, at worst.
// Before a session it opens two others for a moment, one after the other. RabbitMQ may still count
// them, and those of the verifier before, so a start that meets the limit of connections waits and
// tries again. Without a connection to publish over, it tries again with
// backoff, up to every five seconds; the session goes on. Messages that are published alone then
// go over the main connection, and trials of stuck targets wait.
//
// # Rows that cannot be deleted
//
// Somebody may have locked a row of a delivered message: an operator with an open DELETE, a
// sender whose INSERT of the same ID failed and whose transaction is still open, a client whose
// host vanished. Or the DELETE fails, or the database does not answer it within a second. Then
// the messages are acked without it (rule 4 of package bridge allows both orders), so that they
// are not forwarded again and fill no prefetch. An order key goes on even sooner, at its
// message's confirm. The verifier remembers at most 100,000 such rows, over sessions too, and
// tries them again with backoff: plain rows for an hour, rows that carry their messages without end.
// While DELETEs fail, no message waits for one. The verifier moves on the stage times of the rows
// that carry messages, so that no verifier stages these again.
//
// If a plain row is given up, or its verifier has died, the row is an orphan: it is harmless, and
// the sweep removes it. If such a row carries its message, a verifier stages the message again, and
// it is delivered again, with the same ID. On an own table there is nothing to delete. State.Undeleted, State.DeleteErr and
// Stats.Abandoned tell; the log does when it begins and when it ends.
//
// # Few connections
//
// The database may refuse a further connection (max_connections, a limit of the role or user).
// Then the session goes on with the connections that it has: the lookup waits for the next one
// that is free, before all settlers, and fewer settlers wait at a time. Every five seconds
// without a refusal another settler tries. A verifier that starts meanwhile waits. If the lookup
// gets no connection for half a minute, the session ends, so that other verifiers get its messages.
//
// # Side jobs
//
// Deleting rows again, staging again, moving stage times on, sweeping and explaining are side
// jobs: no message waits for them, and no failure in them ends a session (rule 12 of package
// bridge). (A message that is set aside waits for its Touch, for a second at most.) The log says
// when one begins to fail, and when it has worked again for a minute. An Observer may panic without
// harm, but it must not block: messages wait until it returns.
//
// # The dead queue
//
// A message that can be neither forwarded nor rightly dropped goes to the dead queue, as it was
// staged, with the reason in its headers (wire.HeaderDeadReason and the following):
//
//	malformed    does not follow the wire format; could not be judged
//	foreign      carries another ledger's identity; could not be judged
//	not-allowed  committed, but its target is not on the allow-list, is a direct reply-to
//	             (which RabbitMQ delivers to and returns, both), or is one of the
//	             verifier's own queues
//	refused      committed, but the broker refuses it at its target for good
//	unroutable   committed, but its target was missing for too long
//	full         committed, but its exchange nacked it Options.Copies times: a queue behind
//	             the exchange is full, and its other queues may have as many copies
//	swept        its row is absent, but may have been removed as an orphan
//
// As soon as a committed message is safe there, its row is deleted. So do not put it back into
// the staging queue, where it would be dropped: bridgectl dead replay brings such messages to
// their targets.
//
// If a message's own headers leave no room for the reason, it becomes a record in the body of a
// dead letter (wire.DeadRecord). So does a message whose headers the AMQP library cannot read,
// on which it would end the connection (wire.Unreadable). bridgectl reads all forms.
//
// A message that is larger than the broker now takes (RabbitMQ 3.x takes 128 MiB by default,
// 4.x takes 16 MiB) cannot be published to any queue, neither whole nor as a record. It stays
// in its queue, and its row stays. The log names it, and State.Stranded counts it. The verifier
// keeps it unacked without its content, and tries again after Options.HandBack. It goes on its
// way when you raise max_message_size. Each such message counts towards the number that a
// verifier holds of its queue (see Memory): if it reaches that number, the queue stops.
//
// # One staging queue for each ledger
//
// Verifiers of two ledgers on one staging queue would put each other's messages into the dead
// queue, as foreign. So each session consumes Topology.LedgerQueue, an empty queue that names its
// ledger and is deleted with its last consumer. A verifier of another ledger then does not
// start: Run returns bridge.ErrOtherLedger. A login without the rights to configure and to read
// that queue works without it; the log says so once. So does a session that gets no answer about
// it for ten seconds, as while the node of that queue is frozen.
//
// # Memory
//
// A verifier holds at most Options.Prefetch messages of the staging queue, half as many (at
// least 20) of the waiting queue, and 500 of each ordered queue. It holds at most
// Options.MaxBytes of them, as they are held: decoded, and with the members of a group taken
// apart (wire.Held); or one larger message or group of each queue. RabbitMQ knows no
// bound in bytes. So the verifier discards the content of messages that exceed the bound, keeps
// them unacked, and hands them back in the order of arrival once there is room. A large message
// may therefore be delivered several times. RabbitMQ before 4.3 counts these deliveries; the
// queues allow a million. A verifier also holds copies of what it is setting aside, and what a
// connection is writing. A verifier reads about 1 MiB of bodies and one message ahead of what it
// holds.
//
// # Errors and the end
//
// Any error of the database, of the consuming connection or of a consuming channel that concerns a
// message ends the session, except a refused connection (see Few connections). The session first acks
// delivered messages, and for a moment awaits confirms; this takes a second at most. All
// the rest is redelivered. A new session starts with backoff. It
// drops the pool's idle connections that are broken, proves again that the database makes a
// lookup wait (driver.Prove), and connects. A pooled database connection that dies while it is
// idle is replaced without a new session. That is safe because every outcome carries the ledger's
// identity and names the server that gave it. If that is another server than the proof covers,
// such as an old primary that has come back, or a copy, the session ends with an error that
// names both (bridge.ErrOtherInstance), closes the pool's idle connections, and starts anew. While
// connections lead to both, sessions follow each other ever more slowly, up to 30 s apart.
//
// When the context of Run ends, the verifier takes at most Options.Drain to finish what it has
// judged, and hands back the rest. If something that was judged is not finished by then, Run
// returns ErrNotDrained. The consumer is not cancelled before that, because RabbitMQ 3.10 loses
// acks of a quorum queue that follow a cancel. So the ending verifier may still receive
// messages; they go back with its channel.
//
// # What each failure stops
//
// While it lasts, or for good. Tests in tests/verifier show it, unless another folder is named.
//
//	what fails or hangs                        it stops                      shown by
//	an open transaction                        its messages, its keys        TestSlowTransactionsDelayTheirOwnMessagesOnly,
//	                                                                         TestAnOpenTransactionHoldsItsKeyOnly
//	a target that nacks                        its messages, their keys      TestFullTargetHoldsUpItselfAlone
//	one full queue behind an exchange          that queue; given up after    TestAFullQueueBehindAnExchangeKeepsNothingFromTheOthers
//	                                           Options.Copies
//	a target that is missing                   the same; after Unroutable    TestMissingExchangeHoldsUpNobody,
//	                                           none                          TestUnroutableArrivesOnceItsQueueExists
//	a target that never confirms               its messages; the others for  TestATargetThatNeverConfirmsHoldsUpItselfAlone
//	                                           a second, or ConfirmTimeout once
//	a publish that the broker refuses          itself (dead queue)           TestWhatTheBrokerRefusesIsDeadLettered
//	a malformed or foreign message             itself (dead queue)           TestMalformedGoesToTheDeadQueueAndStopsNobody
//	headers that cannot be read                itself                        TestUnreadableHeadersStopNobody
//	a message larger than the broker takes     itself, its key               –
//	a locked row of a delivered message        no message; its row stays     TestALockedRowHoldsUpNobody
//	a DELETE that fails or hangs               no message; the rows stay;    TestADeleteThatFailsHoldsUpNobody
//	                                           once all for a second
//	a verifier whose host vanishes             its messages, until the       tests/ledger: TestAVanishedClientLeavesNoLockInMariaDB
//	                                           broker's heartbeat fails
//	a refused database connection              a settler                     TestAServerThatOpensNoFurtherConnectionEndsNoSession
//	the same, at the start                     the verifier's start          TestAVerifierWaitsForItsConnections
//	no database connection for half a minute   the session                   verifier: TestALookupWithoutAConnectionEndsTheSession
//	stage, touch, sweep, explain, observer     itself                        TestMessagesDependOnNoSideJob,
//	                                                                         TestASideJobThatHangsHoldsNoSessionUp
//	a lost staged copy of a carried message    itself, for some seconds      TestALostCarriedMessageArrives,
//	                                                                         TestAPurgedStagingQueueLosesNoCarriedMessage
//	very many messages that are only in        new ones, for a moment        TestAFreshMessageOvertakesABacklogInTheLedger
//	their rows
//	a lookup or settle that fails, or a        the session, which is         TestKilledDatabaseConnectionsStartANewSessionAndLoseNothing,
//	question for evidence                      started again                 TestASessionThatFailsAcksWhatIsSafe
//	a lookup that hangs for 30 s               the session                   –
//	a driver that ignores its context          this verifier; others get     TestADatabaseCallThatHangsHoldsNoMessages
//	                                           its messages
//	the consuming connection or channel        the session                   TestCutConnectionsStartANewSessionAndLoseNothing
//	the publishing connection                  forwarding, until there is    TestALostPublishingConnectionEndsNoSession
//	                                           one; the session goes on
//	no connection for messages published       none, they borrow; trials of  TestALimitOfConnectionsEndsNoSession
//	alone                                      silent targets wait
//	outcomes of another server                 the session; the next may     TestAnOutcomeOfAnotherServerIsNotBelieved
//	                                           begin up to 30 s later
//	no evidence yet                            messages that look rolled     TestARowFromBeforeTheSessionIsNoEvidence,
//	                                           back, and their keys          TestVerifiersOfTwoCopiesLoseNoCarriedMessage
//	the waiting, dead or audit queue           its messages, which go back   –
//	                                           after Options.HandBack
//	the ledger queue, or the right to it       itself                        –
//	a broker that blocks publishing            all forwarding                TestMessagesGoBackWhileNothingCanBePublished
//	a proof that fails                         all: nothing is judged        TestVerifierRefusesALedgerThatFailsTheProof
//	a proof that hangs                         all; after 75 s the next      verifier: TestAProofThatHangsIsNotWaitedFor
//	                                           proof begins
//	a lock on the whole ledger (ALTER TABLE)   all, for as long as it lasts  –
package verifier
