/* SPDX-License-Identifier: PostgreSQL */
/*
 * The database, as far as the contract's promises rest on it: rows, row locks, advisory locks, transactions that end or are
 * ended at any moment. And the truth, which no attempt can see: which effects were committed, and who was told what. Most
 * assertions stand here; each begins its comment with the property of design.md that it is.
 */
mtype = { idle, open, committing, committed, aborted, deserted };
mtype = { move };                /* a row goes to the archive: no change of state */
mtype = { takeover, verify, happened, absent, unknown };

/* ---- what is stored ---- */

typedef Row {
	mtype state = none;
	byte fence;
	byte attempts;
	byte body;              /* the outcome: which execution made it; an answer with another body is another answer */
	bit passed;             /* its lease has passed: an event (see world), never a duration */
	bit archived            /* it is in once.archive, no more in once.intent */
};
Row row[KEYS];
byte row_lock[KEYS];            /* the transaction, counted from 1, that has an uncommitted change of the row, or FOR UPDATE */
#ifdef COLLISION
#define LOCK(k) 0               /* once._lock_id is a hash: two intents may have the same */
#else
#define LOCK(k) (k)
#endif
byte advisory[KEYS];            /* by LOCK: the transaction, counted from 1, that holds once._lock_id(tenant, scope, key) */

/* ---- transactions: a session of each client, upstream and keeper ---- */

typedef Tx {
	mtype status = idle;
	byte key;
	mtype event;            /* the change of the row that becomes visible with COMMIT; 0: none */
	Row to;
	byte effect;            /* the effect in this transaction: which execution made it; 0: none */
	bit inside;             /* it has looked into the day's table, and so has a lock on it until its end */
	bit outdated;           /* the row was changed by others since it began: REPEATABLE READ does not see that */
};
Tx tx[SESSIONS];

/* ---- the truth ---- */

byte effects[KEYS];             /* committed effects of the intent */
byte effect_body[KEYS];
byte at_work[KEYS];             /* workers that may still make an effect outside of the database */
bit granted[SESSIONS];          /* this session's claim is one of them */
byte told[KEYS];                /* the body of the first answer that was acknowledged; 0: none yet */
mtype told_state[KEYS];
byte denied;                    /* the executions of which a client was told that they certainly had no effect */
bit over[KEYS];                 /* the retention of the outcome has really passed */
bit forgotten[KEYS];            /* its row was dropped with its day, or deleted */

/* An effect becomes durable. */
inline happens(k, which)
{
	assert(!(denied & (1 << which)));               /* 5: nobody was told that it did not happen */
	assert(!forgotten[k]);                          /* 7: nothing happens to an intent that was forgotten */
	effects[k]++;
	assert(effects[k] <= 1);                        /* 1: at most one committed effect */
	effect_body[k] = which
}

/* A client gets a definite answer. */
inline acknowledge(k, state_, body_)
{
	assert(forgotten[k] || (row[k].state == state_ && row[k].body == body_));      /* 2: it is stored before it is sent */
	assert(told[k] == 0 || (told[k] == body_ && told_state[k] == state_));         /* 2: every later attempt gets the same */
	assert(forgotten[k] || (state_ == succeeded) == (effects[k] == 1));            /* 1: and it is true */
	d_step { told[k] = body_; told_state[k] = state_ }
}

/* A client is told that its execution certainly had no effect. */
inline deny(k, which)
{
	assert(!(effects[k] > 0 && effect_body[k] == which));                       /* 5: unknown is said, never guessed */
	denied = denied | (1 << which)
}

/*
 * 2, 7: An attempt that looks now must not be told P4041: somebody got an answer whose retention has not passed; or an effect is
 * there that nobody knows of.
 */
#define must_be_found(k) ((told[k] != 0 && !over[k]) || (effects[k] > 0 && !forgotten[k]))

/* ---- how transactions begin and end ---- */

/* BEGIN. A new session, once the old one of this slot has ended: somebody who does not wait for that is another client. */
inline begin(t, k)
{
	tx[t].status == idle || tx[t].status == committed || tx[t].status == aborted;
	stop_work(t, k);
	tx[t].status = open;
	tx[t].key = k
}

inline stop_work(t, k)
{
	if
	:: granted[t] -> granted[t] = 0; at_work[k]--
	:: else
	fi
}

/* Prepares a change of the row: an UPDATE or INSERT, visible to others with COMMIT only. The caller has seen the row free. */
inline write(t, k, event_, state_, fence_, attempts_, body_)
{
	row_lock[k] = t + 1;
	tx[t].event = event_;
	tx[t].to.state = state_;
	tx[t].to.fence = fence_;
	tx[t].to.attempts = attempts_;
	tx[t].to.body = body_
}

inline let_go(t)
{
	if
	:: advisory[LOCK(tx[t].key)] == t + 1 -> advisory[LOCK(tx[t].key)] = 0
	:: else
	fi;
	if
	:: row_lock[tx[t].key] == t + 1 -> row_lock[tx[t].key] = 0
	:: else
	fi;
	tx[t].event = 0;
	tx[t].to.state = none;
	tx[t].to.fence = 0;
	tx[t].to.attempts = 0;
	tx[t].to.body = 0;
	tx[t].to.archived = 0;
	tx[t].effect = 0;
	tx[t].inside = 0;
	tx[t].outdated = 0
}

/* ROLLBACK, sent by the client. */
inline roll_back(t)
{
	let_go(t);
	tx[t].status = aborted
}

/*
 * The backend of a session. Whoever sent COMMIT may never hear of it: the client may be gone (`gone` in the clients), and
 * the commit come later, or never.
 */
proctype backend(byte t)
{
	byte k, other;
end:
	do
	:: atomic {
		tx[t].status == committing ->                   /* COMMIT */
		k = tx[t].key;
		if
		:: tx[t].effect != 0 -> happens(k, tx[t].effect)
		:: else
		fi;
		if
		:: tx[t].event != 0 && tx[t].event != move -> change(row[k].state, tx[t].event, tx[t].to.state)
		:: else
		fi;
		d_step {
		if
		:: tx[t].event != 0 ->
			if
			:: UNFENCED && tx[t].event == claim && tx[t].to.state == processing -> granted[t] = 1; at_work[k]++
			:: else
			fi;
			row[k].state = tx[t].to.state;
			row[k].fence = tx[t].to.fence;
			row[k].attempts = tx[t].to.attempts;
			row[k].body = tx[t].to.body;
			row[k].archived = tx[t].to.archived;
			row[k].passed = 0;
			for (other : 0 .. SESSIONS - 1) {
				tx[other].outdated = tx[other].outdated || (other != t && tx[other].status == open && tx[other].key == k)
			};
			other = 0
		:: else
		fi;
#ifdef RETENTION
		if
		:: day_shut == t + 1 -> day_dropped(k); day_shut = 0
		:: else
		fi;
#endif
		let_go(t);
		k = 0;
		tx[t].status = committed
		}
	   }
	:: d_step {                                             /* it fails, is killed, or finds its client gone; the server crashes */
		tx[t].status == deserted || ((tx[t].status == committing || tx[t].status == open) && fault_is_left) ->
		if
		:: tx[t].status == deserted
		:: else -> count_fault
		fi;
#ifdef RETENTION
		if
		:: day_shut == t + 1 -> day_shut = 0
		:: else
		fi;
#endif
		let_go(t);
		tx[t].status = aborted
	   }
	od
}

/* A client's end, at any moment between two of its steps: killed, cut off, or tired of waiting for an answer. */
inline leave(t, k)
{
	if
	:: tx[t].status == open -> tx[t].status = deserted
	:: else                                         /* a COMMIT that was sent stays sent */
	fi;
	stop_work(t, k);
	gone[t] = 0
}
