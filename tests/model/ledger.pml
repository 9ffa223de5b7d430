/* The database: the ledger's rows, and what a verifier can learn from them. */

/* ABSENT: there is no row. OPEN: the transaction that inserted it has not ended.
 * PRESENT: that transaction has committed. */
#define ABSENT 0
#define OPEN 1
#define PRESENT 2
byte row[2];

/* The truth that everything is measured by. */
bool committed[2];

/* Whose transactions they are: the verifiers', or another ledger's. */
bool foreign[2];

/* A copy of the database, or an old primary: the rows that had committed when the two
 * parted, and the same identity. No sender commits there. */
#ifdef COPY
byte copied[2];
bool on_copy;      /* where the verifiers' connections lead */
byte recorded;     /* since the session of the verifier began */
byte orphans;      /* whose rows were deleted on the copy, and stay */
#define row_there(m) (on_copy -> copied[m] : row[m])
#else
#define row_there(m) row[m]
#endif

/* What the verifiers' ledger shows: of another one's messages, nothing. */
#define shown(m) (foreign[m] -> ABSENT : row_there(m))

/* Whether the server that the verifiers have reached makes a lookup wait; a
 * readable secondary does not. */
bool waits = true;

/* Whether the row carries the message, until it is deleted. Such a row is no orphan, so its
 * absence is never due to a sweep. */
#ifdef CARRIED
bool carries[2];
bool deleted[2];    /* by a DELETE that a crash of the database may undo (faults.pml) */
#define carry(m) carries[m] = (CARRY_IN_THE_TRANSACTION -> true : false)
#define no_longer_carries(m) carries[m] = false
#define note_deletion(m) deleted[m] = true
#define is_spared(m) (carries[m] && SWEEP_SPARES_CARRIED)
#define never_swept true
#else
#define carry(m) skip
#define no_longer_carries(m) skip
#define note_deletion(m) skip
#define is_spared(m) false
#define never_swept false
#endif

/* What a verifier knows of a message; NOT_OURS: another ledger must say; WITHHELD: it
 * looks rolled back, without evidence that the senders commit here. */
mtype = { COMMITTED, ROLLED_BACK, STILL_OPEN, NOT_OURS, WITHHELD };

/* The lookup that never waits: a hit may be believed, a miss says nothing. */
inline look_up(m) {
	if
	:: shown(m) == PRESENT -> outcome = COMMITTED
	:: shown(m) != PRESENT -> outcome = (RULE_3_MISS_SAYS_NOTHING -> STILL_OPEN : ROLLED_BACK)
	fi
}

/* A time-out is a fault, since their number must be bounded; where a transaction
 * stays open for as long as it likes (SLOW) there may be any number. */
#ifdef SLOW
#define time_out RULE_9_WAITING_IS_BOUNDED
#else
#define time_out a_fault
#endif

/* The lookup that waits. While the row is open no line is possible but the
 * time-out: that is the lock. A time-out may come at any moment. */
inline settle(m) {
	atomic {
		if
		:: shown(m) == PRESENT -> outcome = COMMITTED
		:: shown(m) == ABSENT -> outcome = ROLLED_BACK
		:: shown(m) == OPEN && !waits -> outcome = ROLLED_BACK
		:: time_out; outcome = (RULE_3_TIMEOUT_SAYS_NOTHING -> STILL_OPEN : ROLLED_BACK);
		   printf("  time-out while the lookup of %c waits\n", letter(m))
		fi
	}
}

/* Times are counted in two eras, since only this matters: before the watermark of
 * a sweep, or after it. */
byte era;
byte stamp[2];       /* the time that the staged message carries */
byte recorded_at[2]; /* the time in the row */
byte watermark;      /* rows from before this era may have been swept */

/* Read after the settle: a row that a sweep had taken by then is covered by it. */
#ifdef SWEEP
inline read_watermark() {
	only_if(outcome == ROLLED_BACK && SWEEP_WATERMARK_READ_AFTER_SETTLE, swept = watermark)
}
#else
#define read_watermark() skip
#endif
