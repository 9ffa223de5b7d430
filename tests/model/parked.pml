/* A verifier's other work: to bring parked messages back to the staging queue. */
bool unparking_ended[2];
bool unparking[2];

inline unpark(m) {
	atomic {
		parked[m] = ABSENT;
		recorded_at[m] = (UNPARK_MAKES_YOUNG -> era : recorded_at[m]);
		printf("unparker: removes the parked copy of %c, COMMIT\n", letter(m))
	}
}

#ifdef SWEEP
/* The copy is staged with a new time. */
inline restamp(m) { stamp[m] = era }
#else
#define restamp(m) skip
#endif

proctype unparker(byte v) {
	mtype answer;
	byte m;
session:
	{
		do
		:: atomic {
			/* SKIP LOCKED: each copy is taken by one transaction at a time. */
			if
			:: parked[A] == PRESENT && !locked[A] -> m = A
			:: parked[B] == PRESENT && !locked[B] -> m = B
			fi;
			locked[m] = true; unparking[v] = true;
			printf("unparker %d: takes %c\n", v, letter(m))
		   };
			if
			:: !UNPARK_AFTER_CONFIRM -> unpark(m)
			:: else
			fi;
			restamp(m);
			publish(STAGING, one(m));
			if
			:: answer == CONFIRMED -> unpark(m)
			:: else    /* its transaction rolls back; the copy stays */
			fi;
			atomic { locked[m] = false; unparking[v] = false; m = 0; answer = 0 }
		od
	} unless {
		atomic {
			unparking_ended[v];
			unparking_ended[v] = false; unparking[v] = false; locked[m] = false; m = 0; answer = 0;
			goto session
		}
	}
}
