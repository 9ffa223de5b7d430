/* Delivery tags and acks (rule 7 of package bridge), for SPIN: one verifier with two deliveries in
 * hand, a reconnect, and a crash. Both messages are committed; forwarding works.
 *
 * A broker numbers the deliveries of each channel from 1 and knows a delivery by
 * its tag only. So the ack of a tag that is left over from an earlier channel
 * acks whatever has that tag on this one. */
#ifndef FAULTS
#define FAULTS 3
#endif

#include "rules.pml"
#include "broker.pml"

#define NOTHING 2       /* no message */
#define TAGS 10         /* more than one channel delivers in any run */
#define PREFETCH 2

/* The channel, as the broker sees it. */
byte next_tag = 1;
byte unacked[TAGS] = NOTHING;
byte outstanding;

/* The consumer: deliveries that have come in, and those that are worked on. */
chan incoming = [PREFETCH] of { byte, byte }; /* message, tag */
bool in_hand[2];
bool session_ended[2];

/* The verifier's view of the channel: tags that are done and not acked yet. */
byte first_tag = 1;
bool is_done[TAGS];

bool forwarded[2];

/* The broker takes an ack of every tag from one to another. Of tags that it does
 * not know it would close the channel; that hides nothing, so we ignore them. */
inline ack(from, to) {
	tag_i = from;
	do
	:: tag_i <= to ->
		only_if(unacked[tag_i] != NOTHING, outstanding--);
		unacked[tag_i] = NOTHING;
		tag_i++
	:: else -> break
	od;
	printf("verifier: acks %d to %d\n", from, to);
	tag_i = 0
}

/* One multiple ack, up to the tag below which all are done; or, at times, a
 * single one for what is behind a gap. */
inline flush(tag) {
	if
	:: tag != first_tag -> ack(tag, tag)
	:: skip
	fi;
	last = first_tag;
	do
	:: is_done[last] -> last++
	:: else -> break
	od;
	only_if(last > first_tag, ack(first_tag, last - 1));
	first_tag = last;
	last = 0
}

/* The end of a channel: the broker takes back what is unacked, and counts anew. */
inline end_channel() {
	tag_i = 1;
	do
	:: tag_i < next_tag ->
		if
		:: unacked[tag_i] != NOTHING -> ready(STAGING, one(unacked[tag_i]))++
		:: else
		fi;
		unacked[tag_i] = NOTHING;
		tag_i++
	:: else -> break
	od;
	tag_i = 0; outstanding = 0; next_tag = 1
}

/* The verifier's own count begins anew too. */
inline new_channel() {
	tag_i = 0;
	do
	:: tag_i < TAGS -> is_done[tag_i] = false; tag_i++
	:: else -> break
	od;
	tag_i = 0; first_tag = 1
}

/* The session is thrown away: what has come in, and what is in hand. */
inline forget_session() {
	do
	:: incoming?_, _
	:: empty(incoming) -> break
	od;
	session_ended[0] = in_hand[0]; session_ended[1] = in_hand[1]
}

active proctype broker() {
	byte m;
	do
	:: atomic {
		outstanding < PREFETCH;
		if
		:: ready(STAGING, one(A)) > 0 -> m = A
		:: ready(STAGING, one(B)) > 0 -> m = B
		fi;
		assert(next_tag < TAGS);
		ready(STAGING, one(m))--;
		unacked[next_tag] = m; outstanding++;
		incoming!m, next_tag;
		printf("broker: delivers %c with tag %d\n", letter(m), next_tag);
		next_tag++; m = 0
	   }
	od
}

/* Works on one delivery; there are two of them. */
proctype hand(byte h) {
	byte m, tag, tag_i, last;
again:
	{
		do
		:: atomic { incoming?m, tag -> in_hand[h] = true };
			atomic { forwarded[m] = true; printf("verifier: has forwarded %c, tag %d\n", letter(m), tag) };
			atomic {
				is_done[tag] = true;
				if
				:: RULE_7_NO_ACK_OVER_A_GAP -> flush(tag)
				:: else -> ack(1, tag)
				fi;
				in_hand[h] = false; m = 0; tag = 0
			}
		od
	} unless {
		atomic { session_ended[h]; session_ended[h] = false; in_hand[h] = false; m = 0; tag = 0; tag_i = 0; last = 0; goto again }
	}
}

active proctype misfortune() {
	byte tag_i;
	do
	:: atomic { a_fault; end_channel(); new_channel(); forget_session(); printf("CRASH of the verifier\n") }
	:: atomic {
		a_fault; end_channel(); new_channel();
		only_if(RULE_7_TAGS_DIE_WITH_THE_CHANNEL, forget_session());
		printf("RECONNECT\n")
	   }
	od
}

active proctype judgement() {
	atomic {
		timeout;
		printf("END of the run\n");
		only_if(!forwarded[A], printf("BROKEN: A was committed and is lost\n"));
		only_if(!forwarded[B], printf("BROKEN: B was committed and is lost\n"));
		assert(forwarded[A] && forwarded[B]);
		/* A broken rule may also leave an ack out. The loss is what we want to see. */
		assert(outstanding == 0 || !RULE_7_TAGS_DIE_WITH_THE_CHANNEL)
	}
}

init {
	atomic { ready(STAGING, one(A)) = 1; ready(STAGING, one(B)) = 1; run hand(0); run hand(1) }
}
