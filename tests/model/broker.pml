/* The broker: queues, publishing with confirms, and the faults of the network. */

#define A 0            /* messages */
#define B 1
#define one(m) (1 << (m))
#define letter(m) ('A' + (m))

#define only_if(condition, action) if :: condition -> action :: else fi

/* What one copy in a queue carries: 1 is A, 2 is B, 3 is a group of both. */
#define CONTENTS 4

#define STAGING 0
#define WAITING 1
#define TARGET 2
#define DEAD 3
#define QUEUES 4
#define NOWHERE QUEUES
#define BOTH QUEUES     /* the staging queue and the waiting queue */

/* A queue is the number of copies that are ready in it, by content. No order is
 * assumed among them; what is redelivered may come back anywhere. */
typedef Queue { byte ready[CONTENTS] }
Queue queue[QUEUES];
#define ready(q, content) queue[q].ready[content]

/* Everything that goes wrong takes one of these: so the checker tries so many
 * misfortunes, of every kind, in every order, at every step. */
byte faults = FAULTS;
#ifndef SPARED
#define SPARED 0 /* of them do not happen */
#endif
#define a_fault faults > SPARED -> faults--

/* What a publisher learns. RETURNED: the message was returned as unroutable,
 * and then confirmed. UNCONFIRMED: nacked, or no answer came; the message may be
 * lost, may be in the queue, or may still be under way. */
mtype = { CONFIRMED, RETURNED, UNCONFIRMED };

/* Copies that are under way although their publisher has given up, or died. */
chan under_way = [FAULTS + 1] of { byte, byte };

/* Publishes content to queue q; sets the caller's variable answer. */
inline publish(q, content) {
	atomic {
		if
		:: ready(q, content)++; answer = CONFIRMED
		:: a_fault; answer = RETURNED; printf("  returned: queue %d does not exist at present\n", q)
		:: a_fault; answer = UNCONFIRMED; printf("  lost on its way to queue %d, no confirm\n", q)
		:: a_fault; answer = UNCONFIRMED; under_way!!q, content; printf("  under way to queue %d, no confirm\n", q)
		fi
	}
}

active proctype network() {
	byte q, content;
	do
	:: atomic {
		under_way?q, content -> ready(q, content)++;
		printf("network: content %d arrives at queue %d after all\n", content, q);
		q = 0; content = 0
	   }
	od
}
