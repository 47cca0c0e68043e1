/* SPDX-License-Identifier: PostgreSQL */
/*
 * A day of UUIDv7 keys and the clock of the database, which may leap far ahead and be put right again. All intents here are of
 * this one day. keeper.pml retires it.
 */
mtype = { look, doubt, detach, drop, dropped };

mtype phase = look;             /* once.closing.phase; look: the day is open */
bit horizon_passed;             /* the day is really past the horizon */
bit leapt;                      /* the clock is far ahead */
byte leaps = 2;                 /* so often it changes */
bit last_reading;               /* once.clock: was it ahead when it was read last */
bit unsteady;                   /* once._clock_held: it has not gone steadily for long enough since it leapt */

#ifdef RETENTION_BY_WALL_CLOCK
#define clock_is_trusted true
#else
#define clock_is_trusted (!unsteady)
#endif
#ifdef LATE_IS_NEW
#define day_closed false
#else
#define day_closed (phase != look)
#endif
#define day_gone (phase == dropped)
#define can_look (day_shut == 0)                                /* else it waits for an ACCESS EXCLUSIVE lock */
#define past(k, ahead) (over[k] || (ahead))                     /* once._sql_deletable, by a clock that is ahead or not */
#define outlives(k, ahead) (!row[k].archived && (row[k].state == in_doubt || \
	((row[k].state == succeeded || row[k].state == failed_final) && !past(k, ahead))))

/* Somebody else has looked into the day and not ended yet: the ACCESS EXCLUSIVE lock is not to be had. */
#define nobody_inside (inside_count == 0)
inline count_inside()
{
	inside_count = 0;
	for (n : 0 .. SESSIONS - 1) { inside_count = inside_count + (tx[n].inside && n != KEEPER) };
	n = 0
}

/* A row is deleted, or goes with its table. */
inline forget(k)
{
	d_step {
		row[k].state = none;
		row[k].fence = 0;
		row[k].attempts = 0;
		row[k].body = 0;
		row[k].passed = 0;
		row[k].archived = 0;
		forgotten[k] = 1
	}
}

/* The day's table is gone, and with it what was not moved. */
inline day_dropped(k)
{
	phase = dropped;
	if
	:: !row[k].archived ->
		/* 7: what goes had no effect, or its retention has passed */
		assert(row[k].state == none || row[k].state == failed_retryable ||
		       ((row[k].state == succeeded || row[k].state == failed_final) && over[k]));
		forget(k)
	:: else
	fi
}
