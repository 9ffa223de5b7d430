/* The rule that chooses which carried messages are staged again, for SPIN. carried.pml shows
 * that no choice loses a message. This model shows that this choice stages no needless copy,
 * and that a message whose publication is lost arrives.
 *
 * There is one carried message. The staging queue and the waiting queue keep their order. Two
 * verifiers share both. Any time may pass at any moment: the stage time comes, a transaction
 * stays open, a target is missing for a while. The only assumption is the pause. Within it a
 * healthy process completes the step that follows at once: the sender publishes after its
 * COMMIT; a verifier that holds a committed message forwards it and deletes its row, or moves
 * its stage time, or sets it aside. A fault is a lost publication of the message. */
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef SPARE_MARKERS
#define SPARE_MARKERS 2
#endif
#ifndef COMES_AGAIN
#define COMES_AGAIN 1
#endif

#include "rules.pml"
#include "broker.pml"

/* What is in the queues. The marker of verifier v is MARKER + v. */
#define ORIGINAL 1
#define COPY_OF_IT 2
#define MARKER 3
chan staging = [6] of { byte };
chan waiting = [6] of { byte };

#define ABSENT 0
#define OPEN 1
#define PRESENT 2
byte row;
byte delivered;
byte copies;         /* of the message: in a queue, in hand, or about to be published */

/* The stage time in the row, as a number that changes when the time is moved; and whether the
 * time has come. */
byte stage_at = 1;
bool due = true;
byte comes_again = COMES_AGAIN;
bool unpublished;    /* the row says that no copy can exist */

bool publishing;     /* the sender has committed, and its publication follows at once */
bool missing;        /* the target */

/* Each verifier: what it holds; and the stage time of the row when it first saw the row
 * committed and due, 0 if it has not. */
byte in_hand[2];
byte seen[2];

/* Of each marker: whether it is in the queues, and the candidates of either verifier, rows that
 * it had seen at the marker's look. */
bool sent[2];
byte candidate[4];
#define candidate_of(v, marker) candidate[2 * (marker) + (v)]
byte spare_markers = SPARE_MARKERS; /* those that are sent for other rows */
byte asides = 2;        /* so often the message is set aside at most */

#define holds_it(v) (in_hand[v] == ORIGINAL || in_hand[v] == COPY_OF_IT)
#define within_the_pause (row == PRESENT && due && (holds_it(0) || holds_it(1)))
#define nothing_moves (len(staging) == 0 && len(waiting) == 0 && !in_hand[0] && !in_hand[1] && !publishing && !sent[0] && !sent[1])

inline move_stage_time() {
	stage_at++; due = false; unpublished = false
}

/* The claim and the publication. Without a confirm the row comes due again. */
inline stage_again() {
	move_stage_time();
	printf("verifier %d: stages the message again\n", v);
	only_if(copies > 0, printf("BROKEN: a copy is staged although one is left\n"));
	assert(copies == 0);
	if
	:: copies++; staging!COPY_OF_IT
	:: a_fault; printf("  the publication is lost\n")
	fi
}

inline publish_original() {
	if
	:: staging!ORIGINAL; printf("sender: publishes\n")
	:: a_fault; copies--; printf("sender: the publication is lost\n")
	fi;
	publishing = false
}

active proctype sender() {
	row = OPEN;
	if
	:: /* published before the end of the transaction */
		atomic { copies++; publish_original() };
		if
		:: atomic { row = PRESENT; printf("sender: COMMIT\n") }
		:: row = ABSENT
		fi
	:: /* after the COMMIT */
		if
		:: atomic { row = PRESENT; copies++; publishing = true; printf("sender: COMMIT\n") };
			atomic { publish_original() }
		:: row = ABSENT
		fi
	:: /* not at all */
		if
		:: atomic { row = PRESENT; unpublished = true; printf("sender: COMMIT, not published\n") }
		:: row = ABSENT
		fi
	fi
}

/* The stage time comes again. Not while a verifier holds the message: it moves the time on
 * before that. */
active proctype time() {
	do
	:: atomic {
		row == PRESENT && !due && !holds_it(0) && !holds_it(1) && (comes_again > 0 || nothing_moves) ->
		only_if(comes_again > 0, comes_again--);
		due = true;
		printf("the stage time comes\n")
	   }
	od
}

active proctype target() {
	if
	:: missing = true; missing = false
	:: skip
	fi
}

/* The candidates at the marker's look: committed, due, and first seen a pause ago or earlier.
 * The other lines are broken rules. */
inline note_candidates(w) {
	if
	:: !GONE_SEEN_BY_READER -> candidate_of(w, v) = stage_at
	:: !GONE_FIRST_SEEN -> candidate_of(w, v) = (row == ABSENT -> 0 : stage_at)
	:: GONE_SEEN_BY_READER && GONE_FIRST_SEEN && publishing && GONE_PAUSE_BEFORE_LOOK -> candidate_of(w, v) = 0
	:: else -> candidate_of(w, v) = seen[w]
	fi
}

/* A verifier's other work: it looks at the ledger and sends markers, for this row or for
 * others. */
proctype looker(byte v) {
	do
	:: atomic {
		row == PRESENT && due && seen[v] != stage_at ->
		seen[v] = stage_at;
		printf("verifier %d: sees the row committed and due\n", v)
	   }
	:: atomic { row == PRESENT && due && unpublished -> stage_again() }
	:: atomic { !GONE_MARKER && row == PRESENT && due && seen[v] == stage_at -> stage_again() }
	:: atomic {
		!sent[v] && (spare_markers > 0 || nothing_moves && row == PRESENT && due && seen[v] == stage_at) ->
		only_if(spare_markers > 0, spare_markers--);
		sent[v] = true;
		note_candidates(0);
		note_candidates(1);
		staging!(MARKER + v);
		printf("verifier %d: sends marker %d\n", v, v)
	   }
	od
}

inline take(from_waiting) {
	in_hand[v] = x; aside = from_waiting;
	if
	:: x == ORIGINAL -> printf("verifier %d: takes the original from queue %d\n", v, from_waiting)
	:: x == COPY_OF_IT -> printf("verifier %d: takes the copy from queue %d\n", v, from_waiting)
	:: x >= MARKER -> printf("verifier %d: takes marker %d from queue %d\n", v, x - MARKER, from_waiting)
	fi
}

inline set_aside() { waiting!x; in_hand[v] = 0 }

inline handle_marker() {
	if
	:: !aside && GONE_BY_WAITING_QUEUE ->
		/* held for the pause, and set aside */
		atomic { !within_the_pause || !GONE_PAUSE_BEFORE_WAITING; set_aside() }
	:: else ->
		/* held for the pause; then the candidates are read again */
		atomic {
			!within_the_pause || !GONE_PAUSE_BEFORE_READING;
			sent[x - MARKER] = false;
			printf("verifier %d: marker %d has gone by\n", v, x - MARKER);
			only_if(GONE_MARKER && row == PRESENT && candidate_of(v, x - MARKER) != 0 &&
				(candidate_of(v, x - MARKER) == stage_at || !GONE_READ_AGAIN),
				stage_again());
			in_hand[v] = 0
		}
	fi
}

inline handle_message() {
	do
	:: atomic { row == PRESENT && !missing -> delivered = 1; printf("verifier %d: forwards\n", v) };
		atomic { row = ABSENT; in_hand[v] = 0; copies--; printf("verifier %d: deletes the row\n", v); break }
	/* The stage time moves before the message is set aside. */
	:: atomic {
		row == PRESENT && missing && due && GONE_TOUCH ->
		move_stage_time();
		printf("verifier %d: moves the stage time, for the target is missing\n", v)
	   }
	:: atomic {
		row == PRESENT && missing && (!due || !GONE_TOUCH) && asides > 0 ->
		asides--; set_aside();
		printf("verifier %d: sets the message aside\n", v);
		break
	   }
	:: atomic { row == OPEN && asides > 0 -> asides--; printf("verifier %d: will set the message aside, for the transaction is open\n", v) };
		atomic { set_aside(); printf("verifier %d: has set it aside\n", v); break }
	:: atomic { row == ABSENT -> in_hand[v] = 0; copies--; printf("verifier %d: drops the message\n", v); break }
	od
}

proctype verifier(byte v) {
	byte x;
	bool aside;
	do
	:: atomic {
		if
		:: staging?x -> take(0)
		:: waiting?x -> take(1)
		/* A broken rule: the marker overtakes. */
		:: !GONE_IN_QUEUE_ORDER && staging??[MARKER] -> staging??MARKER; x = MARKER; take(0)
		fi
	   };
		if
		:: x >= MARKER -> handle_marker()
		:: else -> handle_message()
		fi;
		atomic { x = 0; aside = false }
	od
}

active proctype judgement() {
	atomic {
		timeout;
		printf("END of the run\n");
		only_if(row == PRESENT, printf("BROKEN: the message was committed and is lost\n"));
		assert(row == ABSENT);
		assert(len(staging) == 0 && len(waiting) == 0 && copies == 0)
	}
}

init { atomic { run verifier(0); run verifier(1); run looker(0); run looker(1) } }
