/* A copy of the database, for SPIN: the original and the copy have the same identity, and each
 * has a verifier. Both verifiers consume one staging queue, whose order is open. The copy is
 * taken at any moment.
 *
 * A is carried. Its row may be in the copy. B is plain, and is sent to the original after the
 * verifier of the copy has begun. Neither may be lost. A may be sent by both: any outbox's
 * relay on a copy does that too. A run need not end: the original's verifier may drop each copy
 * of A that the copy's verifier stages. From every state one that ends can be reached.
 *
 *	-DNEW_IDENTITY       the copy is given an identity of its own before a verifier starts
 *	                     on it; then it must send nothing of the original's
 *	-DIDLE               B is not sent
 *
 * A fault is a lost publication. */
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef NEEDLESS
#define NEEDLESS 1
#endif

#include "rules.pml"
#include "broker.pml"

#define ORIGINAL 0
#define COPIED 1

#define ABSENT 0
#define OPEN 1
#define PRESENT 2
typedef Database { byte row[2] }
Database database[2];
#define row_in(d, m) database[d].row[m]

/* A is delayed: the time in its row is the one at which it is wanted, so it may be later than
 * the beginning of the session on the copy. Its sender publishes nothing then. */
bool delayed;

bool committed[2], forwarded[2];
bool copy_exists;
bool at_work;        /* the verifier of the copy */

/* The staging queue. */
byte published[2];   /* by senders */
byte restaged[2];    /* A, by the verifier of either database */
#define none_left (published[A] + restaged[ORIGINAL] + restaged[COPIED] == 0)
byte needless = NEEDLESS;

/* Rule 6: a message is judged by its own ledger. */
#ifdef NEW_IDENTITY
#define is_own(d, by) ((d) == (by))
#else
#define is_own(d, by) true
#endif

active proctype sender_of_A() {
	row_in(ORIGINAL, A) = OPEN;
	if
	:: published[A]++
	:: delayed = true
	:: atomic { a_fault; printf("sender: the publication of A is lost\n") }
	fi;
	atomic { row_in(ORIGINAL, A) = PRESENT; committed[A] = true; printf("sender: COMMIT of A on the original, delayed: %d\n", delayed) }
}

active proctype copying() {
	atomic {
		row_in(COPIED, A) = (committed[A] -> row_in(ORIGINAL, A) : ABSENT);
#ifdef NEW_IDENTITY
		only_if(COPY_NEW_IDENTITY_DELETES_CARRIED, row_in(COPIED, A) = ABSENT);
#endif
		copy_exists = true;
		printf("COPY of the database, with A: %d\n", row_in(COPIED, A) == PRESENT)
	}
}

active proctype sender_of_B() {
#ifndef IDLE
	at_work ->
	row_in(ORIGINAL, B) = OPEN;
	published[B]++;
	if
	:: atomic { row_in(ORIGINAL, B) = PRESENT; committed[B] = true; printf("sender: COMMIT of B on the original\n") }
	:: row_in(ORIGINAL, B) = ABSENT
	fi
#else
	skip
#endif
}

/* The row is there: the message is forwarded, confirmed, and the row deleted. */
inline forward(m) {
	printf("verifier of database %d: forwards %c\n", d, letter(m));
#ifdef NEW_IDENTITY
	only_if(d == COPIED, printf("BROKEN: the copy sends %c, which is the original's\n", letter(m)));
	assert(d == ORIGINAL);
#endif
	forwarded[m] = true;
	row_in(d, m) = ABSENT
}

/* The row is absent, and there is evidence. */
inline drop(m) {
	printf("verifier of database %d: drops %c\n", d, letter(m))
}

#define has_evidence (evidence || !RULE_6_EVIDENCE)

/* A copy of A that was staged again, by the verifier of either database. */
inline judge_restaged(by) {
	if
	:: atomic {
		restaged[by] > 0 && is_own(d, by) && row_in(d, A) == PRESENT ->
		restaged[by]--; forward(A);
		only_if(delayed && !COPY_RESTAGED_IS_NO_EVIDENCE, evidence = true)
	   }
	:: atomic { restaged[by] > 0 && is_own(d, by) && row_in(d, A) == ABSENT && has_evidence -> restaged[by]--; drop(A) }
	fi
}

/* Messages that must wait, for their transaction or for evidence, stay in the queue here. */
proctype verifier(byte d) {
	bool evidence;
	if
	:: d == COPIED -> atomic { copy_exists -> at_work = true; printf("verifier of database 1: begins\n") }
	:: else
	fi;
	do
	/* As their senders published them. On the original both are evidence. On the copy A is
	 * none, since its row is older than the session. */
	:: atomic { published[A] > 0 && is_own(d, ORIGINAL) && row_in(d, A) == PRESENT -> published[A]--; forward(A); only_if(d == ORIGINAL, evidence = true) }
	:: atomic { published[B] > 0 && is_own(d, ORIGINAL) && row_in(d, B) == PRESENT -> published[B]--; forward(B); evidence = true }
	:: atomic { published[A] > 0 && is_own(d, ORIGINAL) && row_in(d, A) == ABSENT && has_evidence -> published[A]--; drop(A) }
	:: atomic { published[B] > 0 && is_own(d, ORIGINAL) && row_in(d, B) == ABSENT && has_evidence -> published[B]--; drop(B) }
	/* Staged again, on either database. */
	:: judge_restaged(ORIGINAL)
	:: judge_restaged(COPIED)
	/* Any committed row that carries a message, at any moment. */
	:: atomic {
		row_in(d, A) == PRESENT && (needless > 0 || none_left) && (evidence || COPY_STAGING_NEEDS_NO_EVIDENCE) ->
		only_if(!none_left, needless--);
		restaged[d]++;
		printf("verifier of database %d: stages A again\n", d)
	   }
	od
}

active proctype judgement() {
	atomic {
		timeout;
		printf("END of the run\n");
		only_if(committed[A] && !forwarded[A], printf("BROKEN: A was committed and is lost\n"));
		only_if(committed[B] && !forwarded[B], printf("BROKEN: B was committed and is lost\n"));
		assert(committed[A] == forwarded[A] && committed[B] == forwarded[B]);
		assert(row_in(ORIGINAL, A) == ABSENT && row_in(ORIGINAL, B) == ABSENT)
	}
}

init { atomic { run verifier(ORIGINAL); run verifier(COPIED) } }
