/* The orphan sweep. It knows nothing of the queues: it may take any row that is
 * old enough, and whatever it takes, no committed message may be dropped. */

inline raise_watermark() {
	watermark = era;
	printf("sweeper: raises the watermark to time %d, COMMIT\n", era)
}

/* One statement: rows that are committed, old and not carried. */
inline delete_row(m) {
	if
	:: row[m] == PRESENT && recorded_at[m] < era && !is_spared(m) ->
		row[m] = ABSENT; no_longer_carries(m);
		printf("sweeper: deletes the row of %c\n", letter(m))
	:: else
	fi
}

active proctype sweeper() {
	atomic { era = 1; printf("sweeper: comes much later\n") };
	atomic { only_if(SWEEP_WATERMARK_FIRST, raise_watermark()) };
	atomic { delete_row(A) };
	atomic { only_if(!SWEEP_WATERMARK_FIRST, raise_watermark()) }
}
