/* What must be so when nothing can happen any more. Since every run ends (the
 * test has SPIN look for cycles), this is what every run leads to. */

/* A message that rolled back, or a copy of one that has arrived, may wait for evidence. */
#ifdef COPY
#define awaited(m) (committed[m] && effects[m] == 0 && ready(DEAD, one(m)) == 0)
#define left_in(q) ((awaited(A) -> ready(q, 1) : 0) + (awaited(B) -> ready(q, 2) : 0) + ready(q, 3))
#define is_orphan(m) (orphans & one(m))
#else
#define left_in(q) (ready(q, 1) + ready(q, 2) + ready(q, 3))
#define is_orphan(m) false
#endif

inline check_queue_is_empty(q) {
	if
	:: left_in(q) > 0 -> printf("BROKEN: a message is left in queue %d\n", q)
	:: else
	fi;
	assert(left_in(q) == 0)
}

inline check(m) {
	/* Delivered = committed. Half of it, and 'at most once in effect', are
	 * asserted where the effect takes place. */
	if
	:: committed[m] && effects[m] == 0 && ready(DEAD, one(m)) == 0 ->
		printf("BROKEN: %c was committed and is lost\n", letter(m))
	:: else
	fi;
	assert(!committed[m] || effects[m] == 1 || ready(DEAD, one(m)) > 0);
	/* Nobody is left holding it. */
	assert(row[m] != OPEN);
	/* A message that has been dealt with leaves no row: of a foreign one the other
	 * ledger keeps it, and a row that was deleted on a copy is an orphan. */
	assert(row[m] == ABSENT || foreign[m] || is_orphan(m))
}

/* Rule 9 says more than that B is not stuck for good: once it is committed it
 * takes effect, however long A's transaction lasts. */
#ifdef IN_TIME
ltl in_time { [] (committed[B] -> <> (effects[B] > 0)) }
#endif

active proctype judgement() {
	atomic {
		timeout;
		printf("END of the run\n");
		check_queue_is_empty(STAGING);
		check_queue_is_empty(WAITING);
		check_queue_is_empty(TARGET);
		assert(!busy[0] && !busy[1] && !handling[0] && !handling[1]);
		check(A);
		check(B)
	}
}
