/* The protocol of the two-queue bridge, for SPIN. README.md says how to
 * read it and how to run it.
 *
 *	                     one message, any FAULTS misfortunes
 *	-DFOREIGN            the message may be one of another ledger
 *	-DGROUP              two messages, in one group or in two
 *	-DCARRIED            the row carries the message; verifiers stage it again
 *	-DSWEEP              an orphan sweep, at any moment
 *	-DFAILOVER           the database stops making lookups wait, for a while
 *	-DCOPY               two messages; the verifiers reach a copy of the database,
 *	                     or an old primary, for a while
 *	-DSLOW               one transaction outlasts the other's delivery
 *	-DRECEIVERS=2        two receivers of one name
 */
#ifndef FAULTS
#define FAULTS 3
#endif
#ifndef VERIFIERS
#define VERIFIERS 2
#endif
#ifndef NEEDLESS
#define NEEDLESS 1
#endif
#ifndef RECEIVERS
#define RECEIVERS 1
#endif

#include "rules.pml"
#include "broker.pml"
#include "ledger.pml"
#include "receiver.pml"
#include "sender.pml"
#include "verifier.pml"
#ifdef CARRIED
#include "carried.pml"
#endif
#ifdef SWEEP
#include "sweep.pml"
#endif
#include "faults.pml"
#include "end.pml"

init {
	atomic {
#ifdef FOREIGN
		if
		:: foreign[A] = true
		:: skip
		fi;
#endif
		run transaction(A);
#if defined(GROUP) || defined(SLOW) || defined(COPY)
		run transaction(B);
#endif
#ifdef SLOW
		/* Each queue has a consumer of its own. */
		run verifier(0, STAGING);
		run verifier(1, WAITING);
#else
		run verifier(0, BOTH);
#if VERIFIERS > 1
		run verifier(1, BOTH);
#endif
#endif
#ifdef CARRIED
		run restager(0);
#if VERIFIERS > 1
		run restager(1);
#endif
#endif
		run receiver(0);
#if RECEIVERS > 1
		run receiver(1)
#endif
	}
}
