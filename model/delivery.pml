/* SPDX-License-Identifier: PostgreSQL */
/*
 * The way out and the way in: events of committed effects, the relay that publishes them, a broker that delivers at least
 * once, and a consumer that applies them. Each `atomic` is one statement, named before it. See model/README.md.
 */
#ifndef EVENTS
#define EVENTS 2                /* transactions that emit one event each; their ids are taken in the order 0, 1, ... */
#endif
#ifndef FAULTS
#define FAULTS 1                /* so often something fails or is gone; then no more, and all has to arrive */
#endif
#include "transitions.pml"

/* ---- the producers' database ---- */

bit visible[EVENTS];            /* committed */
bit rolled_back[EVENTS];
bit begun[EVENTS];              /* the event has its id; in the order of ids */
byte next_id;
bit seen[EVENTS];               /* the snapshot that the relay has stored: what it saw (once.relay.seen) */
byte published_up_to;           /* mutation: the sequence instead of the snapshot */
bit day_lock;                   /* a transaction makes the day's partition: 'pgonce partitions', and the lock on the new table */
bit day_made;                   /* that is committed: its rows are seen, and others find its name */
bit day_told;                   /* every session has been told, and puts events there and looks for them there */

/* ---- the broker ---- */

bit sent[EVENTS];               /* published at least once */
bit waiting[EVENTS];            /* to be delivered, and not acknowledged by the consumer */
byte duplicates = 1;            /* so many messages the broker brings again by itself */
byte faults = FAULTS;

/* ---- the consumer's database ---- */

mtype inbox[EVENTS] = none;     /* once.intent, scope = the consumer, key = the message's id */
byte applied[EVENTS];
bit receiving[EVENTS];          /* the advisory lock of once.receive */

/* A transaction that emits, on a day that has its partition or not. */
proctype producer()
{
	byte me;
	bit making;

	if
	:: atomic { !day_made && !day_lock -> day_lock = 1; making = 1 }        /* once._make_days */
	:: atomic { day_made && day_told -> making = 0 }                /* once._has_day: waits for who makes it, where its name is there */
	:: atomic { !day_made && day_lock -> goto refused }             /* once._wait_for_days waits no longer: P4098 */
	fi;
	atomic { me = next_id; next_id++; begun[me] = 1 }               /* once.emit: the id, in the open transaction */
	if
	:: atomic { making -> visible[me] = 1; day_made = 1 };          /* COMMIT, in any order; then the others are told, */
	   atomic { day_told = 1; day_lock = 0 }                        /* and then its locks are released */
	:: atomic { !making -> visible[me] = 1 }
	:: atomic { making -> rolled_back[me] = 1; day_lock = 0 }       /* ROLLBACK, or a crash: and the day with it */
	:: atomic { !making -> rolled_back[me] = 1 }
	fi;
refused:
	making = 0
}

/* Another one like it takes over from it whenever it is gone: so its memory is lost at any moment. */
proctype relay()
{
	bit batch[EVENTS];
	bit now[EVENTS];
	byte n;

end:	do
	:: atomic {                                                     /* once_job.relay_look: S2 */
		for (n : 0 .. EVENTS - 1) { now[n] = visible[n] };
		n = 0
	   };
#ifndef RELAY_DOES_NOT_WAIT
		!day_made || day_told;                                  /* LOCK TABLE once.outbox, which waits for who makes a partition */
#endif
		atomic {                                                /* once_job.relay_list: S2 minus S1, where it knows of the partition */
			for (n : 0 .. EVENTS - 1) {
#ifdef RELAY_BY_SEQUENCE
				batch[n] = now[n] && day_told && n >= published_up_to
#else
				batch[n] = now[n] && day_told && !seen[n]
#endif
			};
			n = 0
		};
		do
		:: n < EVENTS && batch[n] ->
			atomic {                                        /* the sink's acknowledgement, or none: then again, later */
				if
				:: sent[n] = 1; waiting[n] = 1
				:: faults > 0 -> faults--; goto lost
				fi
			};
			n++
		:: n < EVENTS && !batch[n] -> n++
		:: n == EVENTS -> break
		od;
		if
		:: atomic {                                             /* once_job.relay_settle: S2 becomes S1 */
			for (n : 0 .. EVENTS - 1) {
				if
				:: now[n] -> seen[n] = 1; published_up_to = n + 1
				:: else
				fi
			}
		   }
		:: atomic { faults > 0 -> faults-- }                     /* it is gone before that is committed */
		fi;
lost:		atomic {
			for (n : 0 .. EVENTS - 1) { batch[n] = 0; now[n] = 0 };
			n = 0
		}
	od
}

/* A broker that brings again what was not acknowledged, and now and then what was. */
proctype broker()
{
	byte n;
end:	do
	:: atomic {
		duplicates > 0 ->
		n = 0;
		do
		:: n < EVENTS - 1 -> n++
		:: sent[n] -> break
		:: !sent[n] && n == EVENTS - 1 -> break
		od;
		if
		:: sent[n] -> duplicates--; waiting[n] = 1
		:: else
		fi;
		n = 0
	   }
	od
}

/* Of several consumers, each with a transaction of its own. */
proctype consumer()
{
	byte n;
	bit to_apply;

end:	do
	:: atomic {                                                     /* a delivery */
		if
		:: waiting[0] -> n = 0
		:: waiting[1] -> n = 1
		fi
	   };
#ifdef ACK_BEFORE_COMMIT
		waiting[n] = 0;
#endif
		atomic { to_apply = (inbox[n] == none && !receiving[n]); receiving[n] = receiving[n] || to_apply }      /* once.receive */
		if
		:: !to_apply && inbox[n] == none -> goto again                  /* P4029: another one is applying it */
		:: !to_apply && inbox[n] != none                                /* 'duplicate': only to be acknowledged */
		:: atomic {                                                     /* 'process'; the effect; COMMIT */
			to_apply ->
			change(inbox[n], receive, succeeded);
			inbox[n] = succeeded;
			receiving[n] = 0;
			applied[n]++;
			assert(applied[n] <= 1);                        /* 1, 4: a message's effect is applied once */
			assert(visible[n])                              /* 3: an event exists only where its effect committed */
		   }
		:: atomic { to_apply && faults > 0 -> faults--; receiving[n] = 0; goto again }          /* the consumer, or its transaction, is gone */
		fi;
		waiting[n] = 0;                                                 /* the acknowledgement to the broker */
again:		atomic { n = 0; to_apply = 0 }
	od
}

/* 3, 4: every event of a committed effect is published and applied in the end. */
ltl delivered { <> [] ((!visible[0] || applied[0] == 1) && (!visible[1] || applied[1] == 1)) }

init
{
	atomic {
		if
		:: day_made = 1
		:: day_made = 0
		fi;
		day_told = day_made;
		run producer(); run producer(); run relay(); run broker(); run consumer(); run consumer()
	}
}
