// Package verifier judges staged messages. It forwards messages whose transaction has committed and
// drops messages whose transaction has rolled back.
//
//	ledger, err := postgres.Open(ctx, db) // or sqlserver, mysql, sqlite; migrate.Ledger has made its tables
//	broker, err := bridge.Dial(ctx, "amqp://verifier:secret@localhost/", nil)
//	options := &verifier.Options{
//		Allow:   []verifier.Allow{{Exchange: "orders", RoutingKey: "*"}},
//		Watcher: postgres.Inspect(ledger), // the log says whose transaction holds a message up
//	}
//	db.SetMaxIdleConns(options.Connections()) // database/sql keeps 2
//	v, err := verifier.New(ledger, broker, options)
//	err = v.Run(ctx) // makes the queues, works until ctx ends, then drains
//
// A verifier runs inside your service (example_test.go is a whole program), or as the program
// cmd/verifier. Package verifier/ops adds metrics, readiness and a status page to either, package
// verifier/otelverifier traces. Any number of verifiers of both kinds may consume one staging
// queue. Each may be killed at any time. Package bridge describes the protocol, its guarantees,
// terms and rules.
//
// # The steps of a message
//
//   - Lookup. Deliveries gather into batches. One statement that never waits finds which of the IDs
//     are in the ledger: these messages have committed.
//   - Waiting room. A message that the lookup does not find may be uncommitted, rolled back, or
//     committed a moment ago. It waits in memory. At most Options.Settlers messages are settled at
//     a time, each by a statement that waits on the row lock of the open transaction. Only this
//     statement may say 'rolled back'. The other messages in the room are looked up again and again.
//   - Evidence. A session drops no message before it has found a committed message whose row was
//     recorded since the session began (see Copies of the database).
//   - Waiting queue. A message that waits longer than Options.Patience, or for which the room is
//     too full, is copied to the waiting queue with a confirm and then acked. Verifiers consume
//     that queue too. If that queue has more messages than a verifier may hold, the messages
//     circulate: each is looked up and copied to the queue's end. So even a transaction that stays
//     open for hours, with more messages than fit into memory, delays its own messages only.
//   - Forward. The message is published to its target, mandatory and persistent, without waiting
//     for others. It is safe when it is confirmed and was not returned.
//   - Forget, then ack. Rows are deleted in batches, then the messages are acked, many at once.
//     After a crash between the two steps a message is redelivered, its row is absent, and it is
//     dropped.
//
// A delivery may be a group of messages (package wire). Each message is judged by itself, and the
// delivery is acked when the last of them is done. The verifier does not read bodies.
//
// The cost is per burst, not per message. So under load a lookup waits for more messages: not at all
// up to 500 messages a second, 6 ms from 1,500 a second on. A DELETE waits for 30 ms at every rate. If
// the verifier is killed, the messages of those 30 ms come twice.
//
// # Copies of the database
//
// A copy of the database, and an old primary that comes back, pass the proof, but messages that
// were committed on the other server look rolled back there. So a session believes only the server
// that its proof covers (proof.Proven), and drops nothing before it has evidence that senders
// commit on this server (rule 6 of package bridge defines it). With an own table the evidence is a
// message that was staged at least a minute after the session began. Until it has evidence, the
// session runs one more statement for each batch of committed messages.
//
// Until then messages that look rolled back wait, each in a place of the waiting room but without a
// settler. When these places are taken, further messages circulate through the waiting queue, ever
// more slowly, up to 30 s each round. A message with an order key holds its key. When evidence comes,
// all are settled again. State.Waiting.Evidence counts the messages. The log reports them after
// Options.ExplainAfter, and again when evidence comes.
//
// # Messages in order
//
// Messages with an order key come from the ordered queues (Options.Topology.OrderedShards). Each of
// these queues has a single active consumer: one verifier gets all its messages. When that verifier
// ends, another takes over. The messages are forwarded key by key, in the order that package bridge
// promises: a message waits until every earlier one of its key is dropped, or confirmed at its
// target or in the dead queue.
//
// A message holds its key while its transaction is open, while its target is full or missing, or
// while the broker's size limit is below its size. Other keys go on. But when a verifier holds 500
// messages of an ordered queue, or they fill the queue's share of Options.MaxBytes, the whole queue
// waits. When a message goes to the dead queue its key goes on, unless Options.HoldKeys is set.
//
// The promise rests on the broker: when a consumer ends with its channel, an ordered queue delivers
// its unacked messages again, at their old places (measured on 3.10.8 and 4.3.6). So a verifier
// never nacks such a message or sets it aside. It gives messages back only by closing the queue's
// channel: after Options.HandBack, or to get a message again for which Options.MaxBytes had no
// room. A message on its way to an unavailable target may then come twice. A policy with
// delayed-retry-type (RabbitMQ 4.3) breaks the promise; bridgectl doctor reports it. Before RabbitMQ
// 4.2.6, deliveries that got lost on the way to a channel may come out of order, more likely in a
// cluster (rabbitmq-server, pull request 14386; fixed by 15883 and 16008).
//
// # Unavailable targets
//
// A target may be full (nack), missing (return, or 404), or never confirm. Such a target is
// unavailable: its messages wait, the verifier retries it with backoff, and messages for other
// targets do not wait. A message for a missing target is given up after Options.Unroutable, and a
// message that an exchange nacks after Options.Copies attempts. A nack by the default exchange means
// that no queue has the message, so it is retried without a bound. The next session remembers
// unavailable targets.
//
// A target counts as one that never confirms if messages that were published to other targets a
// second later are confirmed first, or if it nacks after a second or more, as RabbitMQ does for a
// quorum queue without a leader. The verifier then tries it with one message at a time, over a
// separate connection. Within that second, 32 messages to such a target can make RabbitMQ stop
// reading the whole connection. Then messages to other targets are published again on another
// connection. If nothing shows which target is silent, they first wait for Options.ConfirmTimeout,
// once. After a publish that the broker refuses with an error, all messages in flight on that channel
// are published again too. In all these cases they may be delivered twice.
//
// # The dead queue
//
// A message that can be neither forwarded nor rightly dropped goes to the dead queue in its staged
// form, with the reason in its headers (wire.HeaderDeadReason and the following):
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
// When a committed message is safe in the dead queue, its row is deleted. So do not put the message
// back into the staging queue, where it would be dropped. bridgectl dead replay sends such messages to
// their targets. It reads all forms of dead letters (package wire).
//
// A message that is larger than the broker now accepts (by default 128 MiB on RabbitMQ 3.x, 16 MiB
// on 4.x) cannot be published to any queue. It stays in its queue, and its row stays. The log names
// it, and State.Waiting.TooLarge counts it. The verifier keeps it unacked without its content, and
// tries again after Options.HandBack: raise max_message_size. If a verifier holds as many such
// messages as it may hold of their queue, the queue stops.
//
// # Carried messages
//
// The staged copy of a carried message may be lost, since its sender's commit waits for no confirm.
// As long as its row exists, verifiers stage such a message again, as a side job. They look for
// rows whose stage time has come, at least twice a second once a carried row or message was seen.
// After two slow looks a verifier pauses for 20 times the duration of the shorter one, for a minute
// at most.
//
// If the row's sender has published nothing, a verifier stages the message at once. Otherwise it
// stages the message when no queue has a copy: a marker (wire.Marker), sent after the row was seen,
// has come through the staging queue and the waiting queue, the row is still there, and its stage
// time is unchanged. Verifiers move the stage time on, by 10 s to 10 min, for each message that
// they stage, hold for long or set aside. A lost message arrives about five seconds after its
// commit, or when its backlog is worked off. In a backlog at most 2,000 messages, 16 MiB in all,
// are on their way to their targets, the longest due first, so new messages wait behind few others.
//
// A copy that comes while the verifier holds the message shares its end. A copy whose message has been
// forwarded finds no row and is dropped. A duplicate, with the same ID, is possible if two verifiers
// hold both copies at the same moment, or if a row could not be deleted. Needless copies arise when a
// verifier is killed, frozen or slow, at most as many as it holds messages, and when a sender repeats
// a rolled-back transaction with the same ID while the broker is out. If the broker refuses a message
// for good, the message stays in its row, and the log names it.
//
// # Orphan rows
//
// A row that carries no message and is older than Options.SweepAge counts as an orphan: its message
// is gone, because a queue was purged or deleted. The verifier removes orphans at the start of a
// session and every ten minutes, if the queues are empty. If the message of a removed row comes after
// all, it goes to the dead queue; package driver explains why it is never dropped.
//
// # Rows that cannot be deleted
//
// The DELETE of a delivered message's row may fail, or get no answer within a second, or another
// session may have locked the row. Then the verifier acks the messages first (rule 4 of package
// bridge allows both orders), so they are not forwarded again and fill no prefetch. It remembers at
// most 100,000 such rows, across sessions, and retries the DELETE with backoff: of plain rows for an
// hour, of rows that carry their messages without end. It also retries between two sessions, unless
// the database ended the first one or failed the proof. While DELETEs fail, no message waits for one.
//
// If the verifier gives a plain row up, or dies, the row is an orphan: it is harmless, and the
// sweep removes it. If such a row carries its message, the message is delivered again, with the
// same ID. State.Undeleted, State.DeleteErr and Stats.Abandoned show such rows.
//
// # One staging queue for each ledger
//
// Verifiers of two ledgers on one staging queue would put each other's messages into the dead
// queue, as foreign. So each session consumes Topology.LedgerQueue, an empty queue that names its
// ledger and is deleted with its last consumer. A verifier of another ledger then does not start:
// Run returns bridge.ErrOtherLedger. A verifier works without that queue, and the log reports this
// once, if its login lacks the rights to configure and to read it, if the broker has no classic
// queues (queue_types.classic.enabled), or if the broker does not answer about it within ten seconds.
//
// Verifiers of one ledger can consume different staging queues. If rows carry messages this is
// dangerous (Topology.Queue). bridgectl doctor finds such verifiers by their ledger queues, with
// BRIDGE_MANAGEMENT_URL.
//
// # Memory
//
// A verifier holds at most Options.Prefetch messages of the staging queue, half as many (at least
// 20) of the waiting queue, and 500 of each ordered queue. Together they take at most
// Options.MaxBytes of memory; its comment describes the queues' shares and larger messages. In
// addition a verifier holds copies of messages that it is setting aside, the data that a connection
// is writing, and about 1 MiB of bodies and one message that it has read ahead. RabbitMQ has no
// prefetch in bytes, so a large message may be delivered several times. RabbitMQ before 4.3 counts
// these deliveries; the queues allow a million.
//
// # Connections to the broker
//
// A verifier needs two connections: one to consume, one to publish. When necessary it opens more,
// up to MostBrokerConnections: one for messages that are published alone, one for carried messages
// and markers, one for each of at most four targets that did not confirm and are tried again, and
// up to eight former publishing connections whose confirms are missing. Before a session the
// verifier opens two others for a moment, one after the other. RabbitMQ may still count these, and
// the connections of an earlier verifier. So at a limit of connections, a start waits and tries again.
//
// Without a connection to publish over, the session goes on and retries, after pauses that grow to
// about five seconds.
//
// # Few connections to the database
//
// The database may refuse a further connection (max_connections, a limit of the role or user). Then
// the session goes on with its open connections: the lookup gets the next free one, and fewer
// settlers wait at a time. A verifier that starts meanwhile waits. If the lookup gets no connection
// for half a minute, the session ends, so that other verifiers get its messages.
//
// # Errors and the end
//
// A session ends when its consuming connection, a consuming channel, or a database statement for a
// message fails. A broker that does not answer a request on a channel for 30 s counts as lost
// (bridge.Connection.Request). Side jobs, such as staging again or sweeping, end no session
// (rule 12 of package bridge). An Observer may panic without harm, but it must not block: messages
// wait until it returns.
//
// At its end a session acks delivered messages and awaits confirms, for a second at most. All other
// messages are redelivered. A new session starts with backoff, as Run describes. A pooled database
// connection that dies while it is idle is replaced without a new session. If an outcome comes from
// another server than the proof covers, the session ends with an error that names both
// (bridge.ErrOtherInstance). While connections lead to both servers, the pauses between sessions
// grow, up to 45 s.
//
// When the context of Run ends, the verifier takes at most Options.Drain to finish the messages
// that it has judged, and hands back the rest. The consumer is not cancelled before that, because
// RabbitMQ 3.10 loses acks of a quorum queue that follow a cancel. So the ending verifier may still
// receive messages; they go back when its channel closes.
//
// # The effects of each failure
//
// An effect lasts as long as its failure, except that a message in the dead queue stays there. The
// tests are in tests/verifier unless another folder is named.
//
//	failure                                    it stops                      shown by
//	an open transaction                        its messages, its keys        TestSlowTransactionsDelayTheirOwnMessagesOnly,
//	                                                                         TestAnOpenTransactionHoldsItsKeyOnly
//	a target that nacks                        its messages, their keys      TestFullTargetHoldsUpItselfAlone
//	one full queue behind an exchange          that queue; given up after    TestAFullQueueBehindAnExchangeKeepsNothingFromTheOthers
//	                                           Options.Copies
//	a target that is missing                   the same; after Unroutable    TestAMissingExchangeHoldsUpNoOtherTarget,
//	                                           none                          TestUnroutableArrivesOnceItsQueueExists
//	a target that never confirms               its messages; the others for  TestATargetThatNeverConfirmsHoldsUpItselfAlone
//	                                           a second, or ConfirmTimeout once
//	a publish that the broker refuses          itself (dead queue)           TestAMessageThatTheBrokerRefusesIsDeadLettered
//	a malformed or foreign message             itself (dead queue)           TestAMalformedOrForeignMessageIsDeadLetteredAndOthersGoOn
//	headers that cannot be read                itself                        TestUnreadableHeadersEndNoSession
//	a message larger than the broker takes     itself, its key               –
//	a locked row of a delivered message        no message; its row stays     TestALockedRowHoldsUpNoOtherMessage
//	a DELETE that fails or hangs               no message; the rows stay;    TestADeleteThatFailsHoldsUpNoMessage
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
//	question for evidence                      started again                 TestASessionThatFailsAcksForwardedMessages
//	a lookup that hangs for 30 s               the session                   –
//	a driver that ignores its context          this verifier; others get     TestADatabaseCallThatHangsHoldsNoMessages
//	                                           its messages
//	the consuming connection or channel        the session                   TestCutConnectionsStartANewSessionAndLoseNothing
//	a broker that answers heartbeats and not   the connection, after 30 s;   TestABrokerThatDoesNotAnswerEndsTheStart
//	a request                                  a start or session with it
//	the publishing connection                  forwarding, until there is    TestALostPublishingConnectionEndsNoSession
//	                                           one; the session goes on
//	no connection for messages published       none, they borrow; trials of  TestALimitOfConnectionsEndsNoSession
//	alone                                      silent targets wait
//	outcomes of another server                 the session; the next may     TestACopyOfTheDatabase
//	                                           begin up to 45 s later
//	no evidence yet                            messages that look rolled     TestNeitherAnOldRowNorAMessageStagedAgainIsEvidence,
//	                                           back, and their keys          TestACopyOfTheDatabase
//	the waiting, dead or audit queue           its messages, which go back   –
//	                                           after Options.HandBack
//	the ledger queue, or the right to it       itself                        TestWithABrokerOfItsOwn
//	a broker that blocks publishing            all forwarding                TestMessagesGoBackWhileNothingCanBePublished
//	a proof that fails                         all: nothing is judged        TestVerifierRefusesALedgerThatFailsTheProof
//	a proof that hangs                         all; after 75 s the next      verifier: TestAProofThatHangsIsNotWaitedFor
//	                                           proof begins
//	a lock on the whole ledger (ALTER TABLE)   all, for as long as it lasts  –
package verifier
