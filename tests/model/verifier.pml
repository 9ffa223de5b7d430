/* A verifier. It handles one delivery at a time; which of those that lie in its
 * queues, and which member of a group first, is open. */

bool session_ended[2]; /* by the death of the process, or of a connection */
bool busy[2];          /* between a delivery and its ack */

/* What is delivered and not acked: content and queue. It goes back at the end
 * of the session. */
byte unacked[2];
byte came_from[2];

inline deliver(q, content) {
	ready(q, content)--;
	unacked[v] = content; came_from[v] = q; busy[v] = true;
	todo = content;
	printf("verifier %d: is given content %d from queue %d\n", v, content, q)
}

inline ack() {
	unacked[v] = 0; came_from[v] = 0;
	printf("verifier %d: acks\n", v)
}

inline forget(m) {
#ifdef COPY
	only_if(on_copy, orphans = orphans | one(m); copied[m] = ABSENT);
	row[m] = (on_copy -> row[m] : ABSENT);
#else
	row[m] = ABSENT; no_longer_carries(m); note_deletion(m);
#endif
	printf("verifier %d: deletes the row of %c\n", v, letter(m))
}

/* Copies that were staged again. One whose ID this verifier holds joins the copy in hand. It
 * is acked with that copy if the copy was forwarded or is safe elsewhere. If the copy is
 * dropped, the one that joined it is judged itself. */
#ifdef CARRIED
byte joined[2];
inline let_join(m) {
	atomic {
		if
		:: joined[v] == 0 && ready(STAGING, one(m)) > 0 ->
			ready(STAGING, one(m))--; joined[v] = one(m);
			printf("verifier %d: another copy of %c joins\n", v, letter(m))
		:: skip
		fi
	}
}
inline part(m) {
	only_if(joined[v] != 0 && outcome == ROLLED_BACK && CARRY_JOINED_IS_JUDGED, ready(STAGING, joined[v])++);
	joined[v] = 0
}
#else
#define part(m) skip
#endif

/* Rule 5: the proof that the lookup waits. Where it fails no session starts. */
inline prove() {
	waits || !RULE_5_PROOF
}

/* One message of the delivery, and the lookup that never waits. */
inline look(m) {
	atomic {
		if
		:: todo & one(A) -> m = A
		:: todo & one(B) -> m = B
		fi;
		only_if(!SWEEP_WATERMARK_READ_AFTER_SETTLE, swept = watermark);
		if
		:: foreign[m] && RULE_6_OWN_LEDGER -> outcome = NOT_OURS
		:: else -> look_up(m)
		fi
	}
}

/* Rule 6: the copy has the identity too. Nothing is dropped before the session has found
 * a row that was recorded after it began. */
#ifdef COPY
inline weigh(m) {
	if
	:: outcome == COMMITTED && (!RULE_6_EVIDENCE_IS_NEW || (recorded & one(m))) -> evidence = true; withheld = 0
	:: outcome == ROLLED_BACK && RULE_6_EVIDENCE && !evidence -> outcome = WITHHELD
	:: else
	fi
}
inline hand_back(m) {
	printf("verifier %d: has no evidence, and withholds %c\n", v, letter(m));
	ready(came_from[v], unacked[v])++;
	unacked[v] = 0; came_from[v] = 0;
	withheld = withheld | one(m)
}
#define may_take(content) !(withheld & content)
#else
#define weigh(m) skip
#define hand_back(m) skip
#define may_take(content) true
#endif

/* Where the message goes now. */
inline set_course(m) {
	atomic {
		weigh(m);
		if
		:: outcome == WITHHELD -> to = NOWHERE; hand_back(m)
		:: outcome == COMMITTED -> to = TARGET
		:: outcome == STILL_OPEN -> to = WAITING    /* set aside */
		:: outcome == NOT_OURS -> to = DEAD
		/* Rolled back, unless a sweep may have taken the row. */
		:: outcome == ROLLED_BACK && (stamp[m] >= swept || never_swept || !SWEEP_WATERMARK_DECIDES) -> to = NOWHERE
		:: outcome == ROLLED_BACK && stamp[m] < swept && !never_swept && SWEEP_WATERMARK_DECIDES -> to = DEAD
		fi;
		only_if(to == NOWHERE && outcome == ROLLED_BACK, printf("verifier %d: drops %c\n", v, letter(m)));
		only_if(to == TARGET && !RULE_4_ACK_AFTER_CONFIRM, ack());
		only_if(to == TARGET && !RULE_4_DELETE_AFTER_CONFIRM, forget(m))
	}
}

/* When a message is safe where it was published to. Rule 4: confirmed and not
 * returned. The other lines are broken rules. */
#define safe (answer == CONFIRMED || \
	to == TARGET && answer == RETURNED && !RULE_4_RETURNED_IS_NOT_FORWARDED || \
	to == DEAD && !RULE_8_DEAD_LETTER_CONFIRMED || \
	to == WAITING && !RULE_9_SET_ASIDE_CONFIRMED)

/* Publishes the message until it is safe. What has been unroutable for too long
 * goes to the dead queue instead. */
inline bring(m) {
	do
	:: atomic {
		printf("verifier %d: publishes %c to queue %d\n", v, letter(m), to);
		publish(to, one(m));
		if
		:: safe -> break
		:: !safe    /* again */
		:: !safe && to == TARGET && answer == RETURNED -> to = DEAD
		fi
	   }
	od
}

/* The message has come to its end here. The delivery is acked with its last. */
inline done(m) {
	atomic {
		only_if(outcome == COMMITTED, forget(m));
		if
		:: GROUP_EACH_ITS_OWN_OUTCOME || outcome != ROLLED_BACK -> todo = todo & ~one(m)
		:: else -> todo = 0    /* a broken rule: one's outcome is taken for everybody's */
		fi;
		only_if(!GROUP_ACK_AFTER_THE_LAST && unacked[v] != 0, ack());
		part(m);
		clear()
	}
}

/* What is in the verifier's memory about one message. */
inline clear() { m = 0; outcome = 0; answer = 0; to = 0; swept = 0 }

/* Where we ask for how long B may take, the order of the waiting queue matters. A
 * returns to its end each time, so it must not go before B for ever. */
#ifdef IN_TIME
#define in_turn (ready(WAITING, 2) == 0)
#else
#define in_turn true
#endif

proctype verifier(byte v; byte from) {
	byte m, todo, to, swept;
	mtype outcome, answer;
#ifdef COPY
	bool evidence;
	byte withheld; /* taken again once there is evidence */
#endif
session:
	{
		prove();
		do
		:: atomic {
			if
			:: from != WAITING && ready(STAGING, 1) > 0 && may_take(1) -> deliver(STAGING, 1)
			:: from != WAITING && ready(STAGING, 2) > 0 && may_take(2) -> deliver(STAGING, 2)
			:: from != WAITING && ready(STAGING, 3) > 0 -> deliver(STAGING, 3)
			:: from != STAGING && ready(WAITING, 1) > 0 && may_take(1) && in_turn -> deliver(WAITING, 1)
			:: from != STAGING && ready(WAITING, 2) > 0 && may_take(2) -> deliver(WAITING, 2)
			fi
		   };
			do
			:: todo != 0 ->
				look(m);
				only_if(outcome == STILL_OPEN, settle(m));
#ifdef CARRIED
				let_join(m);
#endif
				read_watermark();
				set_course(m);
				only_if(to != NOWHERE, bring(m));
				done(m)
			:: atomic {
				todo == 0 ->
				only_if(unacked[v] != 0, ack());
				busy[v] = false;
				break
			   }
			od
		od
	} unless {
		/* Whatever was in memory is gone. */
		atomic {
			session_ended[v];
			session_ended[v] = false; todo = 0; clear();
#ifdef COPY
			evidence = false; withheld = 0; recorded = 0;
#endif
			goto session
		}
	}
}
