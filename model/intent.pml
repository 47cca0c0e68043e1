/* SPDX-License-Identifier: PostgreSQL */
/*
 * The intent protocol: attempts in the effect's transaction, attempts under a lease, attempts through the gateway, recovery,
 * an operator, and the retention of days. Which of them run, and how many, is a configuration of model/check.py.
 *
 * Each `atomic` is one statement of the contract's, named in the comment before it (or a part of one, where others see what is
 * between); whatever else runs may run between any two of them. A client may be gone at any moment, and another try of it
 * begins; a transaction may be ended by the server at any moment. model/README.md explains how to read all this.
 */
#ifndef KEYS
#define KEYS 1                  /* intents */
#endif
#ifndef TRIES
#define TRIES 2                 /* executions that the first client begins */
#endif
#ifndef TRANSACTIONS
#define TRANSACTIONS 0          /* clients of each kind */
#endif
#ifndef LEASED
#define LEASED 0
#endif
#ifndef GATEWAYS
#define GATEWAYS 0              /* requests through the gateway; each has a service behind it */
#endif
#ifndef ON_STALE
#define ON_STALE in_doubt       /* the scope's policy; takeover, where effects are safe to repeat, is a choice */
#endif
#ifndef MAX_ATTEMPTS
#define MAX_ATTEMPTS 0          /* 0: no limit */
#endif
#ifndef UNFENCED
#define UNFENCED 0              /* 1: a leased effect happens elsewhere; 0: in the transaction of once.complete */
#endif
#define CLIENTS (TRANSACTIONS + LEASED + GATEWAYS)
#define UPSTREAM (CLIENTS)                      /* the first session of a service */
#define KEEPER (CLIENTS + GATEWAYS)             /* the session of the keeper, of recovery, or of an operator */
#if defined(RETENTION) || defined(RECOVERY) || defined(OPERATOR)
#define SESSIONS (CLIENTS + GATEWAYS + 1)
#else
#define SESSIONS (CLIENTS + GATEWAYS)
#endif
#define EXECUTION(client, n) ((client) * TRIES + (n))   /* from 1 on; it stands for the answer that this execution makes */
#define TRIES_OF(client) ((client) == 0 -> TRIES : 1)   /* what a second try of the others could do, the first does */
#define KEY_OF(client) ((client) % KEYS)

#include "transitions.pml"
mtype = { new_claim, replay_success, processing_active, processing_stale, retryable_failure, final_failure, expired };

bit gone[CLIENTS + GATEWAYS];   /* the client is to be gone: see nemesis */
bit busy[CLIENTS + GATEWAYS];
#ifdef FAULTS
byte faults = FAULTS;           /* so often something fails or is gone; then no more, and all has to end */
#define fault_is_left (faults > 0)
#define count_fault faults--
#else
#define fault_is_left true      /* at any moment, for ever */
#define count_fault skip
#endif
#ifdef RETENTION
byte day_shut;                  /* the transaction, counted from 1, that holds the day's table in ACCESS EXCLUSIVE mode */
#include "retention.pml"
#include "database.pml"
#include "keeper.pml"
#else
#define day_open true
#define day_closed false
#define can_look true
#include "database.pml"
#endif

/* ---- the mutations: each takes one guarantee out ---- */

#ifdef NO_ADVISORY_LOCK
#define lock_is_free(k, t) true
#else
#define lock_is_free(k, t) (advisory[LOCK(k)] == 0 || advisory[LOCK(k)] == t + 1)
#endif
#ifdef NO_FENCE_CHECK
#define fence_is_current(k, f) true
#else
#define fence_is_current(k, f) (row[k].fence == f)
#endif
#ifdef SELECT_THEN_INSERT
#define primary_key_conflict(k) false
#else
#define primary_key_conflict(k) (row[k].state != none && !row[k].archived)
#endif
#ifdef NO_ROW_HELD
#define row_is_free(k) true
#else
#define row_is_free(k) (row_lock[k] == 0)
#endif

#ifndef DISHONEST_VERIFY
#define DISHONEST_VERIFY 0
#endif
#ifdef SILENCE_IS_FAILURE
#define no_answer none
#else
#define no_answer in_doubt
#endif

/*
 * A snapshot that has the day closed, but not what became of the row since: a report that was stored; or its way to the archive, which
 * the snapshot shows nowhere once the day's table is gone. once._archived and once._refuse_outdated.
 */
#ifdef OLD_SNAPSHOT
#define snapshot_is_too_old false
#else
#define snapshot_is_too_old (repeatable_read && tx[me].outdated)
#endif

/* pg_try_advisory_xact_lock */
inline try_lock(t, k, locked)
{
	if
	:: lock_is_free(k, t) -> locked = 1; advisory[LOCK(k)] = t + 1
	:: else -> locked = 0
	fi
}

#define USED_UP(r) (MAX_ATTEMPTS > 0 && r.attempts >= MAX_ATTEMPTS)

/*
 * once._verify: what the scope's function answers. It has to be honest: 'absent' promises that the effect will not happen any
 * more either, so while a worker without a fence may still be at it, only 'unknown' is true.
 */
inline ask_verify(k, answer)
{
	if
	:: effects[k] > 0 -> answer = happened
	:: effects[k] == 0 && (at_work[k] == 0 || DISHONEST_VERIFY) -> answer = absent
	:: effects[k] == 0 -> answer = unknown
	fi
}

inline copy(to_, k)
{
	to_.state = row[k].state;
	to_.fence = row[k].fence;
	to_.attempts = row[k].attempts;
	to_.body = row[k].body;
	to_.passed = row[k].passed;
	to_.archived = row[k].archived
}

inline clear(to_)
{
	to_.state = none;
	to_.fence = 0;
	to_.attempts = 0;
	to_.body = 0;
	to_.passed = 0;
	to_.archived = 0
}

#if TRANSACTIONS
/* ---- the effect in the intent's own transaction ---- */

proctype transaction(byte me)
{
	byte tries, execution;
	bit locked, held, repeatable_read, was_closed, to_be_found;
	bit storing;            /* the effect failed for good and is rolled back: a second transaction stores that */
	mtype answer;
	Row seen;

	do
	:: (storing || tries < TRIES_OF(me)) && !busy[me] ->
		busy[me] = 1;
		{
		/* BEGIN ISOLATION LEVEL ... */
		atomic {
			begin(me, KEY_OF(me));
			copy(seen, KEY_OF(me));
			was_closed = day_closed;
			if
			:: repeatable_read = 0
			:: repeatable_read = 1
			fi
		}
		/* once.start: the advisory lock, before anything is looked at */
		if
		:: atomic { tx[me].status == open -> try_lock(me, KEY_OF(me), locked) }
		:: tx[me].status == aborted -> goto ended
		fi;
		/* once.start: SELECT FROM once.intent (the row as of now, or of BEGIN), and what once._start_over decides about it */
		if
		:: atomic {
			tx[me].status == open && can_look ->
			tx[me].inside = 1;
			to_be_found = must_be_found(KEY_OF(me));
			if
			:: repeatable_read
			:: else -> copy(seen, KEY_OF(me))
			fi;
			answer = 0;
			held = 0;
#ifdef RETENTION
			if
			:: day_gone && !seen.archived -> clear(seen)
			:: !repeatable_read && seen.archived -> clear(seen)
			:: else
			fi
#endif
		   }
		:: tx[me].status == aborted -> goto ended
		fi;
#ifdef RETENTION
		/* once._archived */
		if
		:: atomic {
			tx[me].status == open ->
			if
			:: !repeatable_read && seen.state == none && row[KEY_OF(me)].archived -> copy(seen, KEY_OF(me))
			:: else
			fi
		   }
		:: tx[me].status == aborted -> goto ended
		fi;
#endif
		if
		:: atomic {
			tx[me].status == open ->
			if
			:: seen.state == succeeded ->                                   /* replay */
#ifdef FAILURE_UNASKED
				if
				:: storing -> acknowledge(KEY_OF(me), failed_final, EXECUTION(me, tries))
				:: else -> acknowledge(KEY_OF(me), succeeded, seen.body)
				fi;
#else
				acknowledge(KEY_OF(me), succeeded, seen.body);
#endif
				storing = 0;
				tx[me].status = committing;
				goto ended
			:: seen.state == failed_final ->                                /* P4030 */
				acknowledge(KEY_OF(me), failed_final, seen.body);
				storing = 0;
				roll_back(me);
				goto ended
			:: seen.state == in_doubt ||                                    /* P4031 */
			   (seen.state == processing && !seen.passed) ->                /* P4029 */
				roll_back(me);
				goto come_again
			:: else
			fi;
			/* once._refuse_day */
			if
			:: day_closed && repeatable_read && !was_closed ->              /* P4098: its snapshot has the day open */
				roll_back(me);
				goto come_again
			:: day_closed && was_closed && snapshot_is_too_old ->           /* 40001 */
				roll_back(me);
				goto come_again
			:: day_closed && !(repeatable_read && !was_closed) && !snapshot_is_too_old ->   /* P4041 */
				assert(!to_be_found || forgotten[KEY_OF(me)]);          /* since it looked, and rightly: see owed */
				storing = 0;
				roll_back(me);
				goto ended
			:: else
			fi;
			if
			:: !locked ->                                                   /* P4029 */
				roll_back(me);
				goto come_again
			:: else
			fi;
			if
			:: seen.state == none
			:: else ->                                                      /* once._hold: FOR UPDATE SKIP LOCKED */
				if
				:: row_lock[KEY_OF(me)] != 0 || tx[me].outdated || (seen.state == processing && !row[KEY_OF(me)].passed) ->
					roll_back(me);
					goto come_again
				:: else -> held = 1; row_lock[KEY_OF(me)] = me + 1
				fi
			fi;
			if
			:: seen.state == failed_retryable && USED_UP(seen) ->           /* P4030: abandoned; a claim stores it */
				storing = 0;
				roll_back(me);
				goto ended
			:: seen.state == processing && ON_STALE != verify && (ON_STALE == in_doubt || USED_UP(seen)) -> /* P4031 */
				roll_back(me);
				goto come_again
			:: seen.state == processing && ON_STALE == verify ->
				ask_verify(KEY_OF(me), answer);
				if
				:: answer == happened ->                                /* once._store_verified */
					write(me, KEY_OF(me), start, succeeded, seen.fence, seen.attempts, effect_body[KEY_OF(me)])
				:: answer == unknown || (answer == absent && USED_UP(seen)) ->
					roll_back(me);
					goto come_again
				:: answer == absent && !USED_UP(seen)
				fi
			:: else
			fi
		   }
		:: tx[me].status == aborted -> goto ended
		fi;
		/*
		 * The caller was told to proceed: the effect. If it fails for good, it is rolled back, and a second transaction starts; in a
		 * transaction of the caller's, which holds more than this, it is rolled back to a savepoint.
		 */
		if
		:: atomic {
			tx[me].status == open && answer != happened && !storing ->
			tries++;
			execution = EXECUTION(me, tries);
			assert(effects[KEY_OF(me)] == 0 || repeatable_read);            /* 5: told to proceed, so nothing has happened */
			if
			:: tx[me].effect = execution
			:: skip
			:: storing = 1;
				roll_back(me);
				goto ended
			fi
		   }
		:: atomic {
			tx[me].status == open && answer != happened && storing ->
			execution = EXECUTION(me, tries);
#ifdef EFFECT_IN_STORE
			tx[me].effect = execution;
#endif
			assert(effects[KEY_OF(me)] == 0 || repeatable_read)
		   }
		:: atomic { tx[me].status == open && answer == happened }
		:: tx[me].status == aborted -> goto ended
		fi;
		/* once.finish */
		if
		:: atomic {
			tx[me].status == open && answer != happened && (row_lock[KEY_OF(me)] == 0 || row_lock[KEY_OF(me)] == me + 1) ->
			if
			:: !held && day_closed ->                                       /* the trigger on a closed day's table: 40001 */
				roll_back(me);
				goto ended
			:: !held && !day_closed && primary_key_conflict(KEY_OF(me)) ->  /* ON CONFLICT DO NOTHING inserted nothing */
				if
				:: !repeatable_read && (row[KEY_OF(me)].state == failed_retryable ||
				   (row[KEY_OF(me)].state == processing && row[KEY_OF(me)].passed)) -> held = 1  /* once._finish_over */
				:: else ->                                              /* P4010, or 40001 */
					roll_back(me);
					goto ended
				fi
			:: else
			fi;
			if
			:: !storing && tx[me].effect != 0 -> answer = succeeded
			:: !storing && tx[me].effect == 0 -> answer = failed_retryable
			:: storing || tx[me].effect == 0 -> answer = failed_final
			fi;
			write(me, KEY_OF(me), finish, answer, held * row[KEY_OF(me)].fence + 1, held * row[KEY_OF(me)].attempts + 1, execution)
		   }
		:: atomic { tx[me].status == open && answer == happened }
		:: tx[me].status == aborted -> goto ended
		fi;
		/* COMMIT, and its answer, if it comes */
		if
		:: atomic { tx[me].status == open -> tx[me].status = committing }
		:: tx[me].status == aborted -> goto ended
		fi;
		if
		:: atomic {
			tx[me].status == committed ->
			if
			:: answer == happened -> acknowledge(KEY_OF(me), succeeded, effect_body[KEY_OF(me)])
			:: answer == failed_retryable -> deny(KEY_OF(me), execution)
			:: else -> acknowledge(KEY_OF(me), answer, execution)
			fi;
			storing = 0
		   }
		:: atomic { tx[me].status == committed && storing -> goto ended }       /* the answer is lost: the next start finds the failure */
		:: tx[me].status == aborted -> goto ended                               /* the next try asks: it is told what is true */
		fi
		} unless { gone[me] };
come_again:	atomic {
			if
			:: storing && !gone[me] -> deny(KEY_OF(me), EXECUTION(me, tries))       /* an error, as any attempt gets it */
			:: else
			fi;
			storing = 0
		}
ended:		atomic {
			if
			:: gone[me] -> storing = 0
			:: else
			fi;
			leave(me, KEY_OF(me)); busy[me] = 0; locked = 0; held = 0; repeatable_read = 0; was_closed = 0; to_be_found = 0; answer = 0; execution = 0; clear(seen)
		}
	:: atomic { storing && !busy[me] -> storing = 0 }                               /* gone, or out of time, between the two transactions */
	:: tries >= TRIES_OF(me) && !storing -> break
	od
}
#endif

#define row_matches(k, f, event_, next) (!row[k].archived && fence_is_current(k, f) && \
	(row[k].state == processing || (row[k].state == in_doubt && next != in_doubt && event_ != renew && event_ != release)))

#if LEASED || GATEWAYS
/* In once.intent; or, where the day was closed when the claim began, in once.archive. */
#define is_found(me, state_) (row[KEY_OF(me)].state == state_ && (!row[KEY_OF(me)].archived || was_closed))

/*
 * once.claim, a transaction of its own. `verdict` is what the attempt is told once that is committed; 0: it never learns.
 */
inline once_claim(me, verdict_, fence_)
{
	/* once._claim: the advisory lock */
	atomic { begin(me, KEY_OF(me)); try_lock(me, KEY_OF(me), locked); was_closed = day_closed }
	/* once._claim: INSERT ... WHERE NOT EXISTS ON CONFLICT DO NOTHING; SELECT; once._verdict; once._hold; once._take_over */
	if
	:: atomic {
		tx[me].status == open && can_look ->
		tx[me].inside = 1;
		verdict_ = 0;
		fence_ = 1;
		if
		:: row[KEY_OF(me)].state == none || (row[KEY_OF(me)].archived && !was_closed) ->
			if
			:: day_closed && was_closed -> verdict_ = expired
			:: day_closed && !was_closed -> verdict_ = processing_active     /* the trigger on a closed day's table: 40001 */
			:: !day_closed && (!locked || row_lock[KEY_OF(me)] != 0) -> verdict_ = processing_active
			:: !day_closed && locked && row_lock[KEY_OF(me)] == 0 ->
				verdict_ = new_claim;
				write(me, KEY_OF(me), claim, processing, 1, 1, 0)
			fi
		:: is_found(me, succeeded) -> verdict_ = replay_success
		:: is_found(me, failed_final) -> verdict_ = final_failure
		:: is_found(me, in_doubt) && (ON_STALE != verify || day_closed) -> verdict_ = in_doubt
		:: is_found(me, processing) && !row[KEY_OF(me)].passed -> verdict_ = processing_active
		:: is_found(me, failed_retryable) || (is_found(me, processing) && row[KEY_OF(me)].passed) ||
		   (is_found(me, in_doubt) && ON_STALE == verify && !day_closed) ->
			if
			:: day_closed -> verdict_ = expired
			:: !day_closed && (!locked || !row_is_free(KEY_OF(me))) -> verdict_ = processing_active
			:: !day_closed && locked && row_is_free(KEY_OF(me)) -> take_over(me, verdict_, fence_)
			fi
		fi;
		if
		:: tx[me].to.state == processing ->
			tries++;
			execution = EXECUTION(me, tries);
			assert(effects[KEY_OF(me)] == 0 || verdict_ == processing_stale)         /* 5: no effect, where it says so */
		:: else
		fi;
		assert(verdict_ != expired || !must_be_found(KEY_OF(me)));
		body = (tx[me].event != 0 -> tx[me].to.body : row[KEY_OF(me)].body);
		tx[me].status = committing
	   }
	:: tx[me].status == aborted -> goto again
	fi;
	/* COMMIT, and its answer */
	if
	:: atomic {
		tx[me].status == committed ->
		if
		:: verdict_ == replay_success -> acknowledge(KEY_OF(me), succeeded, body)
		:: verdict_ == final_failure -> acknowledge(KEY_OF(me), failed_final, body)
		:: else
		fi
	   }
	:: tx[me].status == aborted -> goto again
	fi
}

/* once._take_over, by the verdict_ that once._verdict has given. */
inline take_over(me, verdict_, fence_)
{
	if
	:: row[KEY_OF(me)].state == failed_retryable -> verdict_ = (USED_UP(row[KEY_OF(me)]) -> final_failure : retryable_failure)
	:: else ->
		if
		:: ON_STALE == verify ->
			ask_verify(KEY_OF(me), verdict_);
			if
			:: verdict_ == happened -> verdict_ = replay_success
			:: verdict_ == absent && !USED_UP(row[KEY_OF(me)]) -> verdict_ = retryable_failure
			:: else -> verdict_ = in_doubt
			fi
		:: ON_STALE != verify && (ON_STALE == in_doubt || USED_UP(row[KEY_OF(me)])) -> verdict_ = in_doubt
		:: ON_STALE != verify && !(ON_STALE == in_doubt || USED_UP(row[KEY_OF(me)])) -> verdict_ = processing_stale
		fi
	fi;
	fence_ = row[KEY_OF(me)].fence;
	if
	:: verdict_ == replay_success -> write(me, KEY_OF(me), claim, succeeded, fence_, row[KEY_OF(me)].attempts, effect_body[KEY_OF(me)])
	:: verdict_ == in_doubt && row[KEY_OF(me)].state == in_doubt -> skip           /* as it was */
	:: verdict_ == in_doubt && row[KEY_OF(me)].state != in_doubt -> write(me, KEY_OF(me), claim, in_doubt, fence_, row[KEY_OF(me)].attempts, 0)
	:: verdict_ == final_failure -> write(me, KEY_OF(me), claim, failed_final, fence_, row[KEY_OF(me)].attempts, row[KEY_OF(me)].body)
	:: else -> fence_++; write(me, KEY_OF(me), claim, processing, fence_, row[KEY_OF(me)].attempts + 1, 0)
	fi
}

/*
 * once._report: complete, fail, release or renew, a transaction of its own. The client sends it again until it hears how it
 * ended: `verdict` is the state that is stored, or 0 where it is refused (P4010, P4011).
 */
inline once_report(me, event_, next, fence_, body_, verdict_)
{
	do
	:: atomic {
		begin(me, KEY_OF(me));
		row_is_free(KEY_OF(me)) && can_look;            /* else it waits for the other change of the row, or for its table */
		tx[me].inside = 1;
		verdict_ = 0;
		if
		:: row_matches(KEY_OF(me), fence_, event_, next) ->
			verdict_ = next;
			write(me, KEY_OF(me), event_, next, row[KEY_OF(me)].fence, row[KEY_OF(me)].attempts - (event_ == release), body_)
		:: !row_matches(KEY_OF(me), fence_, event_, next) && row[KEY_OF(me)].fence == fence_ && row[KEY_OF(me)].state == next &&
		   row[KEY_OF(me)].body == body_ -> verdict_ = next      /* 'repeated' */
		:: else
		fi;
		tx[me].status = committing
	   };
		if
		:: tx[me].status == committed -> break
		:: tx[me].status == committed || tx[me].status == aborted -> skip       /* no answer: once more */
		fi
	od
}
#endif

#if LEASED
/* ---- a worker under a lease ---- */

proctype leased(byte me)
{
	byte tries, execution, fence, body;
	bit locked, was_closed;
	mtype verdict, outcome;

	do
	:: tries < TRIES_OF(me) && !busy[me] ->
		busy[me] = 1;
		{
		once_claim(me, verdict, fence);
		if
		:: verdict == new_claim || verdict == retryable_failure || verdict == processing_stale
		:: else -> goto again
		fi;
#ifdef RENEW
		/* once.renew: the heartbeat */
		if
		:: once_report(me, renew, processing, fence, 0, verdict)
		:: skip
		fi;
#endif
#if UNFENCED
		/* The work, which the database knows nothing of. */
		if
		:: atomic { happens(KEY_OF(me), execution); stop_work(me, KEY_OF(me)); outcome = succeeded }
		:: atomic { outcome = failed_retryable; stop_work(me, KEY_OF(me)) }
		:: atomic { outcome = failed_final; stop_work(me, KEY_OF(me)) }
		:: atomic { outcome = in_doubt; stop_work(me, KEY_OF(me)) }                     /* no answer came: not done, */
		:: atomic { happens(KEY_OF(me), execution); stop_work(me, KEY_OF(me)); outcome = in_doubt }     /* or done */
		:: atomic { outcome = none; stop_work(me, KEY_OF(me)) }                         /* it never started: once.release */
		fi;
		/* once.complete, once.fail or once.release */
		if
		:: outcome == succeeded -> once_report(me, complete, succeeded, fence, execution, verdict)
		:: outcome == none && verdict != processing_stale -> once_report(me, release, failed_retryable, fence, 0, verdict)
		:: outcome == none && verdict == processing_stale -> once_report(me, renew, processing, fence, 0, verdict)   /* stale, as it was found */
		:: else -> once_report(me, fail, outcome, fence, (outcome == in_doubt -> 0 : execution), verdict)
		fi;
		atomic {
			if
			:: outcome == failed_retryable || outcome == none -> deny(KEY_OF(me), execution)
			:: (outcome == succeeded || outcome == failed_final) && verdict == outcome ->
				acknowledge(KEY_OF(me), outcome, execution)
			:: else                                                 /* refused, or in doubt: the next try asks */
			fi
		}
#else
#ifdef COMPLETION_BEFORE_COMMIT
		once_report(me, complete, succeeded, fence, execution, verdict);
		atomic { begin(me, KEY_OF(me)); tx[me].effect = execution };
		if
		:: atomic { tx[me].status == open && verdict == succeeded -> tx[me].status = committing }
		:: atomic { tx[me].status == open && verdict != succeeded -> goto again }
		:: tx[me].status == aborted -> goto again
		fi;
#else
		/* The effect, in a transaction */
		atomic { begin(me, KEY_OF(me)); tx[me].effect = execution };
		/* and once.complete in the same */
		if
		:: atomic {
			tx[me].status == open && row_is_free(KEY_OF(me)) && can_look ->
			tx[me].inside = 1;
			if
			:: row_matches(KEY_OF(me), fence, complete, succeeded) ->
				write(me, KEY_OF(me), complete, succeeded, row[KEY_OF(me)].fence, row[KEY_OF(me)].attempts, execution);
				tx[me].status = committing
			:: else -> goto again                                   /* P4010: rolled back, and the effect with it */
			fi
		   }
		:: tx[me].status == aborted -> goto again
		fi;
#endif
		if
		:: atomic { tx[me].status == committed -> acknowledge(KEY_OF(me), succeeded, execution) }
		:: tx[me].status == aborted
		fi
#endif
		} unless { gone[me] };
again:		atomic { leave(me, KEY_OF(me)); busy[me] = 0; locked = 0; was_closed = 0; verdict = 0; outcome = 0; execution = 0; fence = 0; body = 0 }
	:: tries >= TRIES_OF(me) -> break
	od
}
#endif

#if GATEWAYS
/* ---- a request through the gateway, and the service behind it ---- */

byte request[GATEWAYS];         /* the execution that the service is asked for; 0: none */
byte request_fence[GATEWAYS];   /* Once-Fence */
byte response[GATEWAYS];        /* the whole answer of the service: which execution made it; 0: none */

proctype gateway(byte me)
{
	byte tries, execution, fence, body;
	bit locked, was_closed;
	mtype verdict, outcome;

	do
	:: tries < TRIES_OF(me) && !busy[me] ->
		busy[me] = 1;
		{
		once_claim(me, verdict, fence);
		if
		:: verdict == new_claim || verdict == retryable_failure || verdict == processing_stale
		:: else -> goto again
		fi;
		/* proxy_pass: sent, or the connection is refused */
		if
		:: atomic { request[me] == 0 -> request[me] = execution; request_fence[me] = fence; response[me] = 0; outcome = in_doubt }
		:: atomic { outcome = none; stop_work(me, KEY_OF(me)) }
		fi;
		/* its answer; or none, or a part of one, or too late: nobody knows what it did */
		if
		:: atomic { outcome == in_doubt && response[me] == execution -> outcome = succeeded; response[me] = 0 }
		:: atomic { outcome == in_doubt -> outcome = no_answer }
		:: outcome == none
		fi;
#ifdef ANSWER_BEFORE_STORE
		if
		:: atomic { outcome == succeeded -> acknowledge(KEY_OF(me), succeeded, execution) }
		:: outcome != succeeded
		fi;
#endif
		if
		:: outcome == succeeded -> once_report(me, complete, succeeded, fence, execution, verdict)
		:: outcome == in_doubt -> once_report(me, fail, in_doubt, fence, 0, verdict)
		:: outcome == none && verdict != processing_stale -> once_report(me, release, failed_retryable, fence, 0, verdict)
		:: outcome == none && verdict == processing_stale -> once_report(me, renew, processing, fence, 0, verdict)   /* stale, as it was found */
		fi;
		/* The answer to the client. Where the report was refused, what is stored is the answer (once.peek). */
		atomic {
			if
			:: outcome == succeeded && verdict == succeeded -> acknowledge(KEY_OF(me), succeeded, execution)
			:: verdict == 0 && row[KEY_OF(me)].state == succeeded ->
				acknowledge(KEY_OF(me), succeeded, row[KEY_OF(me)].body)
			:: outcome == none && verdict != 0 -> deny(KEY_OF(me), execution)
			:: else
			fi
		}
		} unless { gone[me] };
again:		atomic {
			if
			:: tx[me].status == open -> tx[me].status = deserted
			:: else
			fi;
			gone[me] = 0; busy[me] = 0; locked = 0; was_closed = 0; verdict = 0; outcome = 0; execution = 0; fence = 0; body = 0
		}
	:: tries >= TRIES_OF(me) -> break
	od
}

/* The service. `by` is its gateway. With UNFENCED it is a naive one; else it takes part by the hand-off. */
proctype service(byte by)
{
	byte execution;
	byte me = UPSTREAM + by;

end:	do
	:: atomic { request[by] != 0 -> execution = request[by]; busy[me] = 1 };
		{
#if UNFENCED
		atomic { happens(KEY_OF(by), execution); stop_work(by, KEY_OF(by)) };
#else
		/* BEGIN; the effect; once.complete under Once-Fence; COMMIT */
		atomic { begin(me, KEY_OF(by)); tx[me].effect = execution };
		if
		:: atomic {
			tx[me].status == open && row_is_free(KEY_OF(by)) ->
			if
			:: row_matches(KEY_OF(by), request_fence[by], complete, succeeded) ->
				write(me, KEY_OF(by), complete, succeeded, row[KEY_OF(by)].fence, row[KEY_OF(by)].attempts, execution);
				tx[me].status = committing
			:: else -> goto again
			fi
		   }
		:: tx[me].status == aborted -> goto again
		fi;
		if
		:: tx[me].status == committed
		:: tx[me].status == aborted -> goto again
		fi;
#endif
		response[by] = execution
		} unless { gone[me] };
again:		atomic {
			if
			:: tx[me].status == open -> tx[me].status = deserted
			:: else
			fi;
			gone[me] = 0; busy[me] = 0; request[by] = 0; execution = 0;
			stop_work(by, KEY_OF(by))
		}
	od
}
#endif

#ifdef RECOVERY
/*
 * once.recover, as the keeper's sweep does it: judged under the advisory lock, stored if the row still is what was judged. With
 * ASK_DOUBTS somebody has it ask about what is in doubt as well, once the verify function can tell.
 */
proctype recovery()
{
	mtype answer;
	Row seen;
	bit locked;

end:	do
	:: atomic {
		row[0].state == processing && row[0].passed ->
		begin(KEEPER, 0);
		try_lock(KEEPER, 0, locked);
		copy(seen, 0);
		if
		:: locked && ON_STALE == verify -> ask_verify(0, answer)
		:: locked && ON_STALE != verify && (ON_STALE == in_doubt || USED_UP(seen)) -> answer = unknown
		:: !locked || (ON_STALE == takeover && !USED_UP(seen)) -> answer = 0            /* the next attempt takes over */
		fi
	   };
		/* once._recover_one */
		if
		:: atomic {
			tx[KEEPER].status == open ->
			if
			:: answer == 0 || (answer == absent && !USED_UP(seen)) || !row_is_free(0) || row[0].state != processing ||
			   row[0].fence != seen.fence || !row[0].passed
			:: else ->
				if
				:: answer == happened -> write(KEEPER, 0, recover, succeeded, seen.fence, seen.attempts, effect_body[0])
				:: answer == absent -> write(KEEPER, 0, recover, failed_final, seen.fence, seen.attempts, seen.fence + 100)
				:: answer == unknown -> write(KEEPER, 0, recover, in_doubt, seen.fence, seen.attempts, 0)
				fi
			fi;
			tx[KEEPER].status = committing
		   }
		:: tx[KEEPER].status == aborted
		fi;
		atomic { tx[KEEPER].status == committed || tx[KEEPER].status == aborted -> answer = 0; locked = 0; clear(seen) }
#ifdef ASK_DOUBTS
	:: atomic {
		row[0].state == in_doubt && (effects[0] > 0 || at_work[0] == 0) ->
		begin(KEEPER, 0);
		try_lock(KEEPER, 0, locked);
		copy(seen, 0);
		if
		:: locked -> ask_verify(0, answer)
		:: !locked -> answer = 0
		fi
	   };
		/* once._recover_doubt, once._decide */
		if
		:: atomic {
			tx[KEEPER].status == open ->
			if
			:: answer == 0 || answer == unknown || !row_is_free(0) || row[0].state != in_doubt || row[0].fence != seen.fence
			:: else ->
				if
				:: answer == happened -> write(KEEPER, 0, recover, succeeded, seen.fence + 1, seen.attempts, effect_body[0])
				:: answer == absent && USED_UP(seen) ->
					write(KEEPER, 0, recover, failed_final, seen.fence + 1, seen.attempts, seen.fence + 100)
				:: answer == absent && !USED_UP(seen) -> write(KEEPER, 0, recover, failed_retryable, seen.fence + 1, seen.attempts, 0)
				fi
			fi;
			tx[KEEPER].status = committing
		   }
		:: tx[KEEPER].status == aborted
		fi;
		atomic { tx[KEEPER].status == committed || tx[KEEPER].status == aborted -> answer = 0; locked = 0; clear(seen) }
#endif
	od
}
#endif

#ifdef OPERATOR
/* once.resolve, once, by somebody who has found out the truth, and has seen to it that no worker is at it any more. */
proctype operator()
{
	bit locked;

end:	atomic {
		at_work[0] == 0 && row_is_free(0) && (tx[KEEPER].status == idle || tx[KEEPER].status == aborted) &&
		(row[0].state == in_doubt || row[0].state == failed_retryable || (row[0].state == processing && row[0].passed)) ->
		begin(KEEPER, 0);
		try_lock(KEEPER, 0, locked);
		if
		:: locked && effects[0] == 1 -> write(KEEPER, 0, resolve, succeeded, row[0].fence + 1, row[0].attempts, effect_body[0])
		:: locked && effects[0] == 0 && row[0].state != failed_retryable ->
			write(KEEPER, 0, resolve, failed_retryable, row[0].fence + 1, row[0].attempts, 0)
		:: locked && effects[0] == 0 -> write(KEEPER, 0, resolve, failed_final, row[0].fence + 1, row[0].attempts, row[0].fence + 100)
		:: !locked
		fi;
		tx[KEEPER].status = committing
	}
}
#endif

/* ---- what just happens ---- */

/* A lease passes: at any moment after it was given, and nothing may depend on when. */
proctype world()
{
	byte k;
end:	do
	:: atomic { row[0].state == processing && !row[0].passed -> row[0].passed = 1 }
#if KEYS > 1
	:: atomic { row[1].state == processing && !row[1].passed -> row[1].passed = 1 }
#endif
	od
}

/* Clients are gone: at any moment. */
proctype nemesis(byte who)
{
end:	do
	:: atomic { busy[who] && !gone[who] && fault_is_left -> count_fault; gone[who] = 1 }
	od
}

#include "formulas.pml"

init
{
	byte n;
	atomic {
		for (n : 0 .. SESSIONS - 1) { run backend(n) }
		for (n : 0 .. CLIENTS + GATEWAYS - 1) { run nemesis(n) }
#if TRANSACTIONS
		for (n : 0 .. TRANSACTIONS - 1) { run transaction(n) }
#endif
#if LEASED
		for (n : TRANSACTIONS .. TRANSACTIONS + LEASED - 1) { run leased(n) }
#endif
#if GATEWAYS
		for (n : 0 .. GATEWAYS - 1) { run gateway(n); run service(n) }
#endif
#ifdef RECOVERY
		run recovery();
#endif
#ifdef OPERATOR
		run operator();
#endif
#ifdef RETENTION
		run keeper();
		run calendar();
#endif
		run world();
		n = 0
	}
}
