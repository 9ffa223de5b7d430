/* -DCARRIED: the row of the ledger carries the message. A verifier's other work: to stage
 * carried messages again. Which rows, and when, is open here: any committed row, at any
 * moment, by any verifier. So no rule that chooses the rows better (gone_by.pml has the one
 * that is used) can lose a message. */
bool staging_ended[2];
bool staging_again[2];

/* So many copies are staged although another one is left; only their number is bounded. */
byte needless = NEEDLESS;

#define no_copy_is_left(m) (ready(STAGING, one(m)) + ready(WAITING, one(m)) + len(under_way) == 0 && \
	!busy[0] && !busy[1] && !staging_again[0] && !staging_again[1])

#define due(m) (row[m] == PRESENT && carries[m] && (needless > 0 || no_copy_is_left(m)))

/* One statement: it moves the stage time on, and returns the message. */
inline claim_row(m) {
	only_if(!no_copy_is_left(m), needless--);
	staging_again[v] = true;
	only_if(!CARRY_CLAIM_ENDS, carries[m] = false);
	printf("restager %d: claims %c\n", v, letter(m))
}

proctype restager(byte v) {
	mtype answer;
	byte m;
session:
	{
		do
		:: atomic {
			if
			:: due(A) -> m = A
			:: due(B) -> m = B
			fi;
			claim_row(m)
		   };
			/* Without a confirm the row comes due again. */
			publish(STAGING, one(m));
			atomic { staging_again[v] = false; m = 0; answer = 0 }
		od
	} unless {
		atomic {
			staging_ended[v];
			staging_ended[v] = false; staging_again[v] = false; m = 0; answer = 0;
			goto session
		}
	}
}
