/* The order of a key, for SPIN: two messages of one key in an ordered queue, two verifiers,
 * a crash of one, and a verifier that the broker has given up and that goes on for a while
 * (it was frozen, or cut off, and has not noticed).
 *
 * A comes before B: either B is staged after the transaction of A has ended, or both are of
 * one transaction. */
#ifndef FAULTS
#define FAULTS 3
#endif

#include "rules.pml"
#include "broker.pml"

/* The rows of the ledger. */
#define ABSENT 0
#define OPEN 1
#define PRESENT 2
byte row[2];
bool committed[2];
bool in_row_only[2]; /* a carried message whose staged copy is lost */

/* Where a message is: in the ordered queue A is always before B. */
#define UNSTAGED 0
#define QUEUED 1
#define ACKED 2
#define HELD 3          /* and the number of the verifier */
byte place[2];

/* The consumers, as the broker sees them. chosen is the active one. */
bool alive[2] = true;
byte chosen = 0;

/* What a verifier knows of a message. */
#define NOTHING 0
#define TAKEN 1
#define JUDGED 2        /* committed */
#define PASSED 3        /* confirmed at the target, or dropped */
#define FORGOTTEN 4     /* its row too */
byte mind[4];
#define known(v, m) mind[2 * (v) + (m)]

/* The broker delivers what is first in the queue. */
#define may_take(m) (alive[v] && place[m] == QUEUED && (m == A || place[A] != QUEUED) && \
	(v == chosen || !ORDER_ONE_CONSUMER))

#define its_turn(m) (m == A || !ORDER_ONE_AT_A_TIME || known(v, A) == NOTHING || known(v, A) >= PASSED)

inline work(m) {
	if
	:: atomic { may_take(m) -> place[m] = HELD + v; known(v, m) = TAKEN; printf("verifier %d: takes %c\n", v, letter(m)) }
	/* The lookup waits while the transaction is open. */
	:: atomic {
		known(v, m) == TAKEN && row[m] != OPEN ->
		known(v, m) = (row[m] == PRESENT -> JUDGED : FORGOTTEN);
		printf("verifier %d: %c has committed: %d\n", v, letter(m), row[m] == PRESENT)
	   }
	:: atomic {
		known(v, m) == JUDGED && its_turn(m) ->
		printf("verifier %d: publishes %c\n", v, letter(m));
		publish(TARGET, one(m));
		only_if(answer == CONFIRMED || !ORDER_CONFIRMED_BEFORE_THE_NEXT, known(v, m) = PASSED);
		answer = 0
	   }
	:: atomic { known(v, m) == PASSED -> row[m] = ABSENT; known(v, m) = FORGOTTEN; printf("verifier %d: deletes the row of %c\n", v, letter(m)) }
	/* An ack over a channel that is gone says nothing to the broker. */
	:: atomic { known(v, m) == FORGOTTEN -> only_if(place[m] == HELD + v, place[m] = ACKED); known(v, m) = NOTHING }
	/* A broken rule. */
	:: atomic {
		!ORDER_NO_NACK && known(v, m) == JUDGED && place[m] == HELD + v && a_fault ->
		place[m] = QUEUED; known(v, m) = NOTHING;
		printf("verifier %d: hands %c back\n", v, letter(m))
	   }
	fi
}

/* The end of a channel gives everything back, at its place. */
inline give_up() {
	only_if(place[A] == HELD + v, place[A] = QUEUED);
	only_if(place[B] == HELD + v, place[B] = QUEUED);
	alive[v] = false;
	only_if(chosen == v && alive[1 - v], chosen = 1 - v)
}

inline begin_session() {
	known(v, A) = NOTHING; known(v, B) = NOTHING;
	alive[v] = true;
	only_if(!alive[chosen], chosen = v)
}

proctype verifier(byte v) {
	mtype answer;
	do
	:: work(A)
	:: work(B)
	:: atomic { alive[v] && a_fault; give_up(); printf("broker: gives verifier %d up\n", v) }
	:: atomic { alive[v] && a_fault; give_up(); begin_session(); printf("CRASH of verifier %d\n", v) }
	/* At any time after that the verifier notices. */
	:: atomic { !alive[v]; begin_session(); printf("verifier %d: begins anew\n", v) }
	od
}

inline record(m) { row[m] = OPEN }
inline stage(m) {
	atomic {
		if
		:: place[m] = QUEUED; printf("sender: stages %c\n", letter(m))
		/* A broken rule: nothing but the row has it. */
		:: !ORDER_NEVER_CARRIED && a_fault; in_row_only[m] = true; printf("sender: the publication of %c is lost, the row carries it\n", letter(m))
		fi
	}
}
inline end(m, how) { row[m] = how; committed[m] = (how == PRESENT); printf("sender: ends %c, committed: %d\n", letter(m), committed[m]) }

active proctype sender() {
	if
	:: /* two transactions */
		record(A); stage(A);
		if
		:: atomic { end(A, PRESENT) }
		:: atomic { end(A, ABSENT) }
		fi;
		record(B); stage(B);
		if
		:: atomic { end(B, PRESENT) }
		:: atomic { end(B, ABSENT) }
		fi
	:: /* one */
		record(A); record(B); stage(A); stage(B);
		if
		:: atomic { end(A, PRESENT); end(B, PRESENT) }
		:: atomic { end(A, ABSENT); end(B, ABSENT) }
		fi
	fi
}

/* Stages again what only its row carries. */
inline stage_again(m) {
	row[m] == PRESENT && in_row_only[m] ->
	in_row_only[m] = false; place[m] = QUEUED;
	printf("restager: stages %c again\n", letter(m))
}
active proctype restager() {
	do
	:: atomic { stage_again(A) }
	:: atomic { stage_again(B) }
	od
}

/* Nobody takes anything out of the target. */
#define arrived(m) (ready(TARGET, one(m)) > 0)

active proctype order() {
	atomic {
		arrived(B) && committed[A] && !arrived(A);
		printf("BROKEN: B has overtaken A\n");
		assert(false)
	}
}

active proctype judgement() {
	atomic {
		timeout;
		printf("END of the run\n");
		only_if(committed[A] && !arrived(A) || committed[B] && !arrived(B), printf("BROKEN: one was committed and is lost\n"));
		only_if(!committed[A] && arrived(A) || !committed[B] && arrived(B), printf("BROKEN: one arrived and was not committed\n"));
		assert(arrived(A) == committed[A] && arrived(B) == committed[B]);
		assert(place[A] == ACKED && place[B] == ACKED)
	}
}

init { atomic { run verifier(0); run verifier(1) } }
