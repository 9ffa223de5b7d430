/* The rules that the model knows, all on. The test switches one off at a time
 * (by hand: -DRULE_...=0), and SPIN must then find a run that breaks the promise. The
 * numbers are those of the package comment of bridge (bridge/doc.go). */

/* Rule 1. The INSERT has succeeded before the first byte of the message leaves. */
#ifndef RULE_1_RECORD_BEFORE_PUBLISH
#define RULE_1_RECORD_BEFORE_PUBLISH 1
#endif

/* Rule 2. COMMIT only after the message is confirmed … */
#ifndef RULE_2_COMMIT_AFTER_CONFIRM
#define RULE_2_COMMIT_AFTER_CONFIRM 1
#endif
/* … and was not returned: what is returned is confirmed all the same. */
#ifndef RULE_2_RETURNED_IS_AN_ERROR
#define RULE_2_RETURNED_IS_AN_ERROR 1
#endif

/* Rule 3. The miss of a lookup that does not wait says nothing. */
#ifndef RULE_3_MISS_SAYS_NOTHING
#define RULE_3_MISS_SAYS_NOTHING 1
#endif
/* Nor does a lookup that ran into its time-out. */
#ifndef RULE_3_TIMEOUT_SAYS_NOTHING
#define RULE_3_TIMEOUT_SAYS_NOTHING 1
#endif

/* Rule 4. Forwarded means confirmed and not returned. Before that the staged
 * message is not acked … */
#ifndef RULE_4_ACK_AFTER_CONFIRM
#define RULE_4_ACK_AFTER_CONFIRM 1
#endif
/* … and the row not deleted. */
#ifndef RULE_4_DELETE_AFTER_CONFIRM
#define RULE_4_DELETE_AFTER_CONFIRM 1
#endif
#ifndef RULE_4_RETURNED_IS_NOT_FORWARDED
#define RULE_4_RETURNED_IS_NOT_FORWARDED 1
#endif

/* Rule 5. A verifier proves at the start of every session that the lookup waits. */
#ifndef RULE_5_PROOF
#define RULE_5_PROOF 1
#endif

/* Rule 6. A message is judged only by its own ledger. */
#ifndef RULE_6_OWN_LEDGER
#define RULE_6_OWN_LEDGER 1
#endif

/* 'Rolled back' needs evidence that the senders commit on this server … */
#ifndef RULE_6_EVIDENCE
#define RULE_6_EVIDENCE 1
#endif
/* … a row that is newer than the session … */
#ifndef RULE_6_EVIDENCE_IS_NEW
#define RULE_6_EVIDENCE_IS_NEW 1
#endif
/* … and a session believes one server only. */
#ifndef RULE_6_ONE_SERVER
#define RULE_6_ONE_SERVER 1
#endif

/* Rule 7. A delivery tag never outlives its channel (tags.pml). */
#ifndef RULE_7_TAGS_DIE_WITH_THE_CHANNEL
#define RULE_7_TAGS_DIE_WITH_THE_CHANNEL 1
#endif
/* A multiple ack speaks only for tags below which all are done (tags.pml). */
#ifndef RULE_7_NO_ACK_OVER_A_GAP
#define RULE_7_NO_ACK_OVER_A_GAP 1
#endif

/* Rule 8. To the dead queue, confirmed; only then acked. */
#ifndef RULE_8_DEAD_LETTER_CONFIRMED
#define RULE_8_DEAD_LETTER_CONFIRMED 1
#endif

/* Rule 9. The waiting is bounded: who waits for too long is set aside … */
#ifndef RULE_9_WAITING_IS_BOUNDED
#define RULE_9_WAITING_IS_BOUNDED 1
#endif
/* … that is: copied to the waiting queue, confirmed; only then acked. */
#ifndef RULE_9_SET_ASIDE_CONFIRMED
#define RULE_9_SET_ASIDE_CONFIRMED 1
#endif

/* Groups: a staged message that carries several transactions' messages is acked
 * when the last of them is settled, … */
#ifndef GROUP_ACK_AFTER_THE_LAST
#define GROUP_ACK_AFTER_THE_LAST 1
#endif
/* … and each of them has an outcome of its own. */
#ifndef GROUP_EACH_ITS_OWN_OUTCOME
#define GROUP_EACH_ITS_OWN_OUTCOME 1
#endif

/* Orphan sweep: the watermark is committed before the first row goes. */
#ifndef SWEEP_WATERMARK_FIRST
#define SWEEP_WATERMARK_FIRST 1
#endif
/* The verifier compares a message that it finds absent with the watermark, … */
#ifndef SWEEP_WATERMARK_DECIDES
#define SWEEP_WATERMARK_DECIDES 1
#endif
/* … which it reads after the settle … */
#ifndef SWEEP_WATERMARK_READ_AFTER_SETTLE
#define SWEEP_WATERMARK_READ_AFTER_SETTLE 1
#endif
/* … and the message's time is not later than that of its row. */
#ifndef SWEEP_STAMP_BEFORE_RECORD
#define SWEEP_STAMP_BEFORE_RECORD 1
#endif

/* Carried messages: the row carries the message from its INSERT on, so in the transaction
 * itself, … */
#ifndef CARRY_IN_THE_TRANSACTION
#define CARRY_IN_THE_TRANSACTION 1
#endif
/* … a claimed row comes due again if it is still there later, … */
#ifndef CARRY_CLAIM_ENDS
#define CARRY_CLAIM_ENDS 1
#endif
/* … the orphan sweep deletes no row that carries a message, … */
#ifndef SWEEP_SPARES_CARRIED
#define SWEEP_SPARES_CARRIED 1
#endif
/* … and a copy that joined another one is judged itself if that one is dropped. */
#ifndef CARRY_JOINED_IS_JUDGED
#define CARRY_JOINED_IS_JUDGED 1
#endif

/* A carried message is staged again only if its copy has gone by (gone_by.pml): a marker went
 * through the queues, … */
#ifndef GONE_MARKER
#define GONE_MARKER 1
#endif
/* … the staging queue, in the queue's order, … */
#ifndef GONE_IN_QUEUE_ORDER
#define GONE_IN_QUEUE_ORDER 1
#endif
/* … and then the waiting queue. */
#ifndef GONE_BY_WAITING_QUEUE
#define GONE_BY_WAITING_QUEUE 1
#endif
/* Before the marker's look the row was seen committed … */
#ifndef GONE_FIRST_SEEN
#define GONE_FIRST_SEEN 1
#endif
/* … by the verifier that receives the marker at its end, … */
#ifndef GONE_SEEN_BY_READER
#define GONE_SEEN_BY_READER 1
#endif
/* … a pause earlier, in which the sender publishes. */
#ifndef GONE_PAUSE_BEFORE_LOOK
#define GONE_PAUSE_BEFORE_LOOK 1
#endif
/* A verifier holds the marker for a pause before it sets the marker aside, … */
#ifndef GONE_PAUSE_BEFORE_WAITING
#define GONE_PAUSE_BEFORE_WAITING 1
#endif
/* … and for another before it reads the row again: … */
#ifndef GONE_PAUSE_BEFORE_READING
#define GONE_PAUSE_BEFORE_READING 1
#endif
/* … the row is there and its stage time is the one that was seen. */
#ifndef GONE_READ_AGAIN
#define GONE_READ_AGAIN 1
#endif
/* A verifier that holds a committed message, or sets it aside, moves its stage time. */
#ifndef GONE_TOUCH
#define GONE_TOUCH 1
#endif

/* On a copy of the database (copy.pml): a message that a verifier has staged again is no
 * evidence, … */
#ifndef COPY_RESTAGED_IS_NO_EVIDENCE
#define COPY_RESTAGED_IS_NO_EVIDENCE 1
#endif
/* … and no evidence is needed to stage a message again: without traffic there is none. */
#ifndef COPY_STAGING_NEEDS_NO_EVIDENCE
#define COPY_STAGING_NEEDS_NO_EVIDENCE 1
#endif
/* Who gives the copy an identity of its own deletes its carried rows. */
#ifndef COPY_NEW_IDENTITY_DELETES_CARRIED
#define COPY_NEW_IDENTITY_DELETES_CARRIED 1
#endif

/* Receiver (package idempotency, Deduplicator): the claim and the effects are in one
 * transaction … */
#ifndef RECEIVER_CLAIMS
#define RECEIVER_CLAIMS 1
#endif
#ifndef RECEIVER_CLAIM_WITH_EFFECT
#define RECEIVER_CLAIM_WITH_EFFECT 1
#endif
/* … and the ack comes after its commit. */
#ifndef RECEIVER_ACK_AFTER_COMMIT
#define RECEIVER_ACK_AFTER_COMMIT 1
#endif

/* In order, per key (ordered.pml): a message waits until the one before it has passed, … */
#ifndef ORDER_ONE_AT_A_TIME
#define ORDER_ONE_AT_A_TIME 1
#endif
/* … which for one that is forwarded means confirmed. */
#ifndef ORDER_CONFIRMED_BEFORE_THE_NEXT
#define ORDER_CONFIRMED_BEFORE_THE_NEXT 1
#endif
/* The queue has one active consumer, … */
#ifndef ORDER_ONE_CONSUMER
#define ORDER_ONE_CONSUMER 1
#endif
/* … which hands nothing back but by the end of its channel. */
#ifndef ORDER_NO_NACK
#define ORDER_NO_NACK 1
#endif
/* A message with an order key is never carried: its COMMIT waits for the confirm. */
#ifndef ORDER_NEVER_CARRIED
#define ORDER_NEVER_CARRIED 1
#endif
