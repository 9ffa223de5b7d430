/* The sender: one process, with a transaction for each message. */

bool sender_died;
#define bounded_by_the_sender unless { sender_died }

/* The staging of m; sets answer. A group is published by the stager below. A carried message
 * is published here, or after the COMMIT, or not at all; no confirm is awaited. */
#if defined(GROUP)
#define stage(m) join(m)
#elif defined(CARRIED)
inline stage(m) {
	if
	:: publish(STAGING, one(m))
	:: skip
	fi
}
inline stage_after_commit(m) {
	only_if(!CARRY_IN_THE_TRANSACTION, only_if(row[m] == PRESENT, carries[m] = true));
	if
	:: answer == 0 -> publish(STAGING, one(m))
	:: skip
	fi
}
#else
#define stage(m) publish(STAGING, one(m))
#endif

/* The time that the message will carry. */
inline take_time(m) {
	atomic { stamp[m] = era; printf("sender: %c carries the time %d\n", letter(m), era) }
}

/* INSERT of the ID (and of the message), in the open transaction. */
inline record(m) {
	atomic {
		row[m] = OPEN; recorded_at[m] = era; carry(m);
#ifdef COPY
		recorded = recorded | one(m);
#endif
		printf("sender: records %c at time %d\n", letter(m), era)
	}
}

/* The end of the transaction. */
inline commit(m) {
	atomic {
		row[m] = (row[m] == OPEN -> PRESENT : row[m]);
		committed[m] = true;
		printf("sender: COMMIT of %c\n", letter(m))
	}
}

inline roll_back(m) {
	atomic {
		row[m] = (row[m] == OPEN -> ABSENT : row[m]); no_longer_carries(m);
		printf("sender: ROLLBACK of %c\n", letter(m))
	}
}

/* A transaction that stays open until the other one's message has had its
 * effect: so if it delayed that one, both would wait for ever. */
#ifdef SLOW
#define slow_work(m) if :: m == A -> effects[B] > 0 :: m == B fi
#else
#define slow_work(m) skip
#endif

/* Group staging: messages of several transactions travel as one staged message. */
#ifdef GROUP
byte gathered;      /* what has been recorded and waits to be published */
mtype answered[2];  /* what became of each */

inline join(m) {
	atomic { gathered = gathered | one(m); printf("sender: %c joins the group\n", letter(m)) };
	answered[m] != 0 -> answer = answered[m]
}

active proctype stager() {
	mtype answer;
	byte group;
	{
		do
		:: atomic { gathered != 0 -> group = gathered; gathered = 0; printf("sender: stages group %d\n", group) };
			publish(STAGING, group);
			atomic {
				answered[A] = ((group & one(A)) -> answer : answered[A]);
				answered[B] = ((group & one(B)) -> answer : answered[B]);
				group = 0; answer = 0
			}
		od
	} bounded_by_the_sender
}
#endif

/* Confirmed and not returned; or the row carries it; the others are broken rules. */
#ifdef CARRIED
#define staged true
#else
#define staged (answer == CONFIRMED || \
	answer == UNCONFIRMED && !RULE_2_COMMIT_AFTER_CONFIRM || \
	answer == RETURNED && !RULE_2_RETURNED_IS_AN_ERROR)
#endif

/* SendTx, and the end of the transaction that it is called in. */
proctype transaction(byte m) {
	mtype answer;
	{
		/* The time that the message carries is taken before the row's. */
		only_if(SWEEP_STAMP_BEFORE_RECORD, take_time(m));
		/* Rule 1: record before publish. */
		only_if(RULE_1_RECORD_BEFORE_PUBLISH, record(m));
		only_if(!SWEEP_STAMP_BEFORE_RECORD, take_time(m));
		stage(m);
		only_if(!RULE_1_RECORD_BEFORE_PUBLISH, record(m));
		slow_work(m);
		/* Rule 2: commit only what is confirmed and was not returned, or is carried. */
		if
		:: staged ->
			if
			:: commit(m);
#ifdef CARRIED
				stage_after_commit(m)
#endif
			:: roll_back(m)    /* for a reason of its own */
			fi
		:: else -> roll_back(m)
		fi
	} bounded_by_the_sender;
	/* The database rolls back what its client has left open, in its own time. */
	if
	:: row[m] == OPEN -> roll_back(m)
	:: else
	fi
}
