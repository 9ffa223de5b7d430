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
//	err = v.Run(ctx) // makes the queues; until ctx ends, then drains
//
// A verifier runs inside your service, or as the program cmd/verifier, which takes its
// configuration from the environment. Package verifier/ops adds metrics, readiness and a status
// page to either, package verifier/otelverifier traces. Any number of verifiers of both kinds may
// consume one staging queue. Each may be killed at any time. Package bridge describes the protocol,
// its guarantees, terms and rules.
//
// # The steps of a message
//
//   - Lookup. Deliveries gather into batches. One statement that never waits asks which of the IDs
//     are in the ledger. The messages that it finds have committed.
//   - Waiting room. A message that the lookup does not find may be uncommitted, rolled back, or
//     committed a moment ago. It waits in memory. At most Options.Settlers messages are settled at
//     a time, each by a statement that waits on the row lock of the open transaction. Only this
//     statement may say 'rolled back'. All others in the room are looked up again with each later
//     batch, and whenever a settled transaction ends, because they may belong to it. After 100 ms a
//     message is looked up only every 100 ms, and such messages get only half of the settlers.
//   - Evidence. A session drops no message before it has found committed a message whose row was
//     recorded since the session began (see Copies of the database).
//   - Waiting queue. A message that waits longer than Options.Patience, or for which the room is
//     too full, is copied to the waiting queue with a confirm and then acked. Verifiers consume
//     that queue too. If the queue has more messages than the verifier may hold, they circulate:
//     each is looked up and copied to the queue's end. The longer a round takes, the shorter each
//     message is held, down to 50 ms. So even a transaction that stays open for hours, with more
//     messages than fit into memory, delays its own messages only. No message is held longer than
//     the broker's consumer timeout allows (Options.HandBack).
//   - Forward. The message is published to its target, mandatory and persistent, without waiting
//     for others. It is safe when it is confirmed and was not returned.
//   - Forget, then ack. Rows are deleted in batches, then the messages are acked, many at once.
//     After a crash between the two steps a message is redelivered, its row is absent, and it is
//     dropped. A row that cannot be deleted delays no message ('Rows that cannot be deleted').
//
// A delivery may be a group of messages (package wire). Each message is judged by itself, and the
// delivery is acked when the last of them is done. The verifier does not read bodies.
//
// The cost is per burst, not per message. So under load messages wait for others: up to 500
// messages a second not at all, then ever longer, and from 1,500 a second on for 6 ms before the
// lookup. Deletes gather for 30 ms at every rate, since no message waits for them. If the verifier
// is killed, the messages of those 30 ms come twice.
//
// # Copies of the database
//
// A copy of the database, and an old primary that comes back, have the ledger's identity and pass
// the proof, but a message that was committed on the other server looks rolled back there. So a
// session believes only the server that its proof covers (proof.Proven), and drops nothing before
// it has evidence that senders commit on this server (rule 6 of package bridge, which defines it).
// With an own table the evidence is a message that was staged at least a minute after the session
// began. Until it has evidence, the session runs one more statement for each batch of committed
// messages.
//
// Until then messages that look rolled back wait for evidence, for as long as no sender commits.
// With evidence, all are settled again. Such a message takes the place of one that waits for its
// transaction, but no settler. When these places are taken, further messages circulate through the
// waiting queue, ever more slowly, up to 30 s each round. A message with an order key holds its
// key. State.Waiting.Evidence counts the messages. The log reports them after Options.ExplainAfter,
// and again when evidence comes.
//
// # Messages in order
//
// Messages with an order key come from the ordered queues (Options.Topology.OrderedShards). Each of
// these queues has a single active consumer: one verifier gets all its messages. When that verifier
// ends, another takes over. Package bridge describes the promised order. The promise rests on these
// facts:
//
//   - The broker delivers an ordered queue in order. When a consumer ends with its channel, the
//     queue delivers its unacked messages again, at their old places (measured on 3.10.8 and
//     4.3.6).
//   - Messages are looked up and settled in any order, together with all others. They are forwarded
//     key by key in the order of the queue: a message waits until every earlier one of its key is
//     dropped, or confirmed at its target or in the dead queue. So one message of each key is on
//     its way at a time, and the keys do not wait for each other.
//   - Messages of an ordered queue are never nacked or set aside. A verifier gives them back only
//     by closing the queue's channel: after Options.HandBack, or to get a message again for which
//     Options.MaxBytes had no room. Before it closes the channel it finishes the messages that are
//     on their way, except messages for unavailable targets, which may come twice. The session goes
//     on with a new channel for that queue.
//   - A verifier that was frozen or cut off also forwards in order, and awaits each confirm before
//     it forwards the next message of a key. So the first copy of a message arrives before the
//     first copy of the next, whatever another verifier does meanwhile.
//
// Before RabbitMQ 4.2.6, deliveries that got lost on the way to a channel and are fetched again
// from the queue may come out of order (rabbitmq-server, pull request 14386; fixed by 15883 and
// 16008). That is more likely in a cluster.
//
// A message holds its key while its transaction is open, while its target is full or missing, or
// while the broker's size limit is below its size. The messages behind it take room. When a
// verifier holds 500 messages of an ordered queue, or they fill the queue's share of
// Options.MaxBytes, the whole queue waits. When a message goes to the dead queue its key goes on,
// unless Options.HoldKeys is set.
//
// # Unavailable targets
//
// A target may be full (nack), missing (return, or 404), or never confirm. Such a target is
// unavailable: its messages wait, the verifier retries it with backoff, and messages for other
// targets do not wait. A missing target is given up after Options.Unroutable, a message that an
// exchange nacks after Options.Copies attempts. A nack of a target queue (by the default exchange)
// means that no queue has the message: it is retried without a bound. The next session remembers
// unavailable targets.
//
// A target counts as one that never confirms if messages that were published to other targets a
// second later are confirmed first, or if it nacks after a second or more, as RabbitMQ does for a
// quorum queue without a leader. The verifier then tries it with one message at a time, over a
// separate connection. Within that second, a burst of 32 messages to such a target can make
// RabbitMQ stop reading the whole connection. Then messages to other targets are published again on
// another connection, or wait for Options.ConfirmTimeout, once, if nothing shows which target is
// silent.
//
// A publish that the broker refuses with an error closes its channel. All messages in flight there
// are published again one at a time, which identifies the refused message. In both cases other
// messages may be delivered twice.
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
// back into the staging queue, where it would be dropped: bridgectl dead replay sends such messages
// to their targets. It reads all forms of dead letters (package wire).
//
// A message that is larger than the broker now accepts (RabbitMQ 3.x accepts 128 MiB by default,
// 4.x accepts 16 MiB) cannot be published to any queue. It stays in its queue, and its row stays.
// The log names it, and State.Waiting.TooLarge counts it. The verifier keeps it unacked without its
// content, and tries again after Options.HandBack: raise max_message_size. Each such message counts
// towards the number that a verifier holds of its queue: if it reaches that number, the queue
// stops.
//
// # Carried messages
//
// A ledger row may carry its message. The sender's commit then waits for no confirm, so the staged
// copy may be lost. As long as the row exists, verifiers stage such a message again, as a side job.
// They look for rows whose stage time has come, at least twice a second once a carried row or
// message was seen. After two slow looks a verifier pauses for 20 times the duration of the shorter
// one, for a minute at most.
//
//   - If a row's sender has published nothing, no copy can be in a queue. The verifier claims the
//     row and stages its message at once.
//   - If a row's sender has published its message, a copy may be in a queue. To find out, the
//     verifier sends a marker (wire.Marker) through the staging queue and the waiting queue. When
//     the marker has come through, each copy that was in the queues before it has reached a
//     verifier, and that verifier has deleted the row or moved its stage time on. So if the row was
//     seen before the marker was sent, its stage time is unchanged, and this verifier does not hold
//     its message, then no queue has a copy. The verifier claims the row and stages its message.
//   - In a backlog the messages come first that have been due for longest. At most 2,000 of them,
//     16 MiB in all, are on their way to their targets, so new messages wait behind few others.
//   - A claim moves the stage time by the age of the row, by 10 s at least and by 10 min at most,
//     before the message is published. A verifier that holds a committed message for long, or sets
//     it aside, moves its stage time on in the same way (Touch).
//   - A copy that comes while the verifier holds the message joins the message. The copy is acked
//     or handed back with the message, and judged by itself if the message is dropped.
//
// A lost message arrives about five seconds after its commit, or when its backlog is worked off. A
// verifier that is killed, frozen or slow may cause as many needless copies as it holds messages. A
// sender that repeats a rolled-back transaction with the same ID while the broker is out causes one
// too: the copy of the first attempt may still be in a queue. A copy whose message has been
// forwarded finds no row and is dropped. A duplicate, with the same ID, is possible if two
// verifiers hold both copies at the same moment, or if a row could not be deleted. If the broker
// refuses a message for good, the message stays in its row, and the log names it.
//
// # Orphan rows
//
// A row that carries no message and is older than Options.SweepAge counts as an orphan: its message
// is gone, because a queue was purged or deleted. The verifier removes orphans at the start of a
// session and every ten minutes, if the queues are empty. If the message of a removed row does
// come, it goes to the dead queue; package driver explains why it is never dropped.
//
// # Rows that cannot be deleted
//
// The DELETE of a delivered message's row may fail, or get no answer within a second, or another
// session may have locked the row. Then the verifier acks the messages first (rule 4 of package
// bridge allows both orders), so they are not forwarded again and fill no prefetch. It remembers at
// most 100,000 such rows, across sessions, and retries them with backoff: plain rows for an hour,
// rows that carry their messages without end. It also retries between two sessions, unless the
// database ended the first one or failed the proof. While DELETEs fail, no message waits for one.
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
// Run returns bridge.ErrOtherLedger. A verifier whose login lacks the rights to configure and to
// read that queue works without it, and the log reports this once. The same happens if the broker
// does not answer about the queue within ten seconds.
//
// Nothing keeps verifiers of one ledger from consuming different staging queues. That is safe as
// long as no row carries a message. Each verifier stages the carried messages of the other queue
// again in its own queue, because it does not see their copies: they may come twice, or go to the
// dead queue if its Options.Allow does not permit them. bridgectl doctor finds such verifiers by
// their ledger queues, with BRIDGE_MANAGEMENT_URL.
//
// # Memory
//
// A verifier holds at most Options.Prefetch messages of the staging queue, half as many (at least
// 20) of the waiting queue, and 500 of each ordered queue. Together they take at most
// Options.MaxBytes of memory, but a message or group that is larger than its queue's share is held
// alone. In addition a verifier holds copies of messages that it is setting aside, the data that a
// connection is writing, and about 1 MiB of bodies and one message that it has read ahead. RabbitMQ
// has no prefetch in bytes, so a large message may be delivered several times (Options.MaxBytes).
// RabbitMQ before 4.3 counts these deliveries; the queues allow a million.
//
// # Connections to the broker
//
// A verifier needs two connections: one to consume, one to publish. When necessary it opens more,
// up to MostBrokerConnections: one for messages that are published alone, one for carried messages
// and markers, one for each of at most four targets that did not confirm and are tried again, and
// up to eight former publishing connections whose confirms are missing. Before a session the
// verifier opens two others for a moment, one after the other. RabbitMQ may still count these, and
// the connections of an earlier verifier. So a start that meets the limit of connections waits and
// tries again.
//
// Without a connection to publish over, the session goes on and retries, after pauses that grow to
// about five seconds.
//
// # Few connections to the database
//
// The database may refuse a further connection (max_connections, a limit of the role or user). Then
// the session goes on with its open connections: the lookup gets the next free one, before all
// settlers, and fewer settlers wait at a time. A verifier that starts meanwhile waits. If the
// lookup gets no connection for half a minute, the session ends, so that other verifiers get its
// messages.
//
// # Errors and the end
//
// A session ends when its consuming connection or a consuming channel fails, or a database
// statement for a message. Deleting rows again, staging again, sweeping and explaining are side
// jobs (rule 12 of package bridge), whose failures end no session. An Observer may panic without
// harm, but it must not block: messages wait until it returns.
//
// At its end a session acks delivered messages and awaits confirms, for a second at most. All other
// messages are redelivered. A new session starts with backoff. It drops the pool's broken idle
// connections, proves again that the database makes a lookup wait (proof.Prove), and connects. A
// pooled database connection that dies while it is idle is replaced without a new session. If an
// outcome comes from another server than the proof covers, the session ends with an error that
// names both (bridge.ErrOtherInstance). While connections lead to both servers, the pauses between
// sessions grow, up to 45 s.
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
//	a malformed or foreign message             itself (dead queue)           TestAMalformedMessageIsDeadLetteredAndOthersGoOn
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
//	the publishing connection                  forwarding, until there is    TestALostPublishingConnectionEndsNoSession
//	                                           one; the session goes on
//	no connection for messages published       none, they borrow; trials of  TestALimitOfConnectionsEndsNoSession
//	alone                                      silent targets wait
//	outcomes of another server                 the session; the next may     TestAnOutcomeOfAnotherServerIsNotBelieved
//	                                           begin up to 45 s later
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
