/* Crashes, at any step of anybody. A lost connection has the same consequences
 * as a death: the session is thrown away whole (rule 7 of package bridge; tags.pml shows why). */

inline end_session(v) {
	if
	:: unacked[v] != 0 -> ready(came_from[v], unacked[v])++
	:: else
	fi;
	unacked[v] = 0; came_from[v] = 0; busy[v] = false;
#ifdef CARRIED
	only_if(joined[v] != 0, ready(STAGING, joined[v])++);
	joined[v] = 0;
#endif
	session_ended[v] = true
}

inline crash_verifier(v) {
	printf("CRASH of verifier %d\n", v);
	end_session(v);
#ifdef CARRIED
	staging_ended[v] = staging_again[v]
#endif
}

inline crash_receiver(r) {
	printf("CRASH of receiver %d\n", r);
	if
	:: received[r] != 0 -> ready(TARGET, received[r])++
	:: else
	fi;
	received[r] = 0; handling[r] = false;
	receiver_died[r] = true
}

/* Who is idle has nothing to lose. */
#ifdef CARRIED
#define at_work(v) (busy[v] || staging_again[v])
#else
#define at_work(v) busy[v]
#endif

active proctype misfortune() {
	do
	:: atomic { at_work(0) && a_fault; crash_verifier(0) }
	:: atomic { at_work(1) && a_fault; crash_verifier(1) }
	:: atomic { handling[0] && a_fault; crash_receiver(0) }
	:: atomic { handling[1] && a_fault; crash_receiver(1) }
	:: atomic { !sender_died && a_fault; sender_died = true; printf("CRASH of the sender\n") }
#ifdef CARRIED
	:: atomic {
		(ready(STAGING, one(A)) > 0 || ready(WAITING, one(A)) > 0) && a_fault;
		ready(STAGING, one(A)) = 0; ready(WAITING, one(A)) = 0;
		printf("PURGE of the staging queue and the waiting queue\n")
	   }
	/* A DELETE that had not reached the disk. */
	:: atomic {
		deleted[A] && row[A] == ABSENT && a_fault;
		deleted[A] = false; row[A] = PRESENT; carries[A] = true;
		printf("CRASH of the database: the row of A is back\n")
	   }
#endif
	od
}

/* The verifiers' connections lead to another server for a while, one that does
 * not make a lookup wait. */
#ifdef FAILOVER
active proctype failover() {
	atomic {
		waits = false; end_session(0); end_session(1);
		printf("FAILOVER to a server that does not wait\n")
	};
	atomic {
		waits = true; end_session(0); end_session(1);
		printf("FAILOVER back\n")
	}
}
#endif

/* The verifiers' connections lead to a copy for a while. Rule 6: the outcome of another
 * server ends the session. On the way back all connections break. */
#ifdef COPY
active proctype copying() {
	atomic {
		copied[A] = (row[A] == PRESENT -> PRESENT : ABSENT);
		copied[B] = (row[B] == PRESENT -> PRESENT : ABSENT);
		printf("COPY of the database\n")
	};
	atomic {
		on_copy = true;
		only_if(RULE_6_ONE_SERVER, end_session(0); end_session(1));
		printf("CONNECTIONS lead to the copy\n")
	};
	atomic {
		on_copy = false; copied[A] = 0; copied[B] = 0; end_session(0); end_session(1);
		printf("CONNECTIONS lead to the original\n")
	}
}
#endif
