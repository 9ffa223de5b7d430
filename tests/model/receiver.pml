/* A receiver: package idempotency's Deduplicator. Claim and effects commit together,
 * the ack comes after. */

/* What has taken effect, and how often: the truth at the receiver. */
byte effects[2];

/* The inbox: FREE, then claimed in an open transaction, then claimed for good. */
#define FREE 0
#define CLAIMING 1
#define CLAIMED 2
byte inbox[2];

bool receiver_died[2];
bool handling[2];
byte received[2]; /* content, delivered and not acked */

inline receive(m) {
	ready(TARGET, one(m))--;
	received[r] = (RECEIVER_ACK_AFTER_COMMIT -> one(m) : 0);
	handling[r] = true;
	printf("receiver %d: is given %c\n", r, letter(m))
}

/* The claim waits while another open transaction has the same key: then no line
 * is possible. */
inline claim(m) {
	atomic {
		if
		:: inbox[m] == FREE ->
			fresh = true; claiming = RECEIVER_CLAIM_WITH_EFFECT;
			inbox[m] = (claiming -> CLAIMING : CLAIMED)
		:: inbox[m] == CLAIMED ->
			fresh = !RECEIVER_CLAIMS;
			printf("receiver %d: knows %c\n", r, letter(m))
		fi
	}
}

inline take_effect(m) {
	atomic {
		inbox[m] = CLAIMED; claiming = false;
		effects[m]++;
		printf("receiver %d: %c takes effect, COMMIT\n", r, letter(m));
		only_if(!committed[m], printf("BROKEN: %c was delivered and its transaction did not commit\n", letter(m)));
		only_if(effects[m] > 1, printf("BROKEN: %c took effect twice\n", letter(m)));
		assert(committed[m] && effects[m] == 1)
	}
}

proctype receiver(byte r) {
	byte m;
	bool claiming, fresh;
again:
	{
		do
		:: atomic {
			if
			:: ready(TARGET, one(A)) > 0 -> m = A
			:: ready(TARGET, one(B)) > 0 -> m = B
			fi;
			receive(m)
		   };
			claim(m);
			only_if(fresh, take_effect(m));
			atomic {
				received[r] = 0; handling[r] = false;
				m = 0; fresh = false;
				printf("receiver %d: acks\n", r)
			}
		od
	} unless {
		/* The database rolls back the open claim, in its own time. */
		atomic {
			receiver_died[r];
			receiver_died[r] = false;
			only_if(claiming, inbox[m] = FREE);
			m = 0; claiming = false; fresh = false;
			goto again
		}
	}
}
