/* SPDX-License-Identifier: PostgreSQL */
/*
 * Two nodes that share the tenants: one slot, one intent in it, callers that may ask either node, and `pgonce rehome`, which
 * moves the slot from one to the other and may be killed at any moment. Each node has its own memory. The effect is committed
 * on the node of the memory, or on another one (ELSEWHERE; Citus, anchored). Each `atomic` is one statement, or a part of one,
 * named before it. See model/README.md.
 */
#ifndef TRIES
#define TRIES 1                 /* executions that the first caller begins; the other begins one */
#endif
#ifndef MOVES
#define MOVES 1                 /* the slot goes to the other node, and back, so often */
#endif
#ifndef ELSEWHERE
#define ELSEWHERE 0             /* 1: the effect is on another node than the memory */
#endif
#ifndef LEASED
#define LEASED 0                /* callers that claim; the attempts of the others are in the effect's transaction */
#endif
#ifndef KILLS
#define KILLS 1                 /* so often the command is killed: each time, the slot gets another epoch */
#endif
#define CALLERS 2
#define EXECUTION(caller, n) ((caller) * TRIES + (n))   /* from 1 on; it stands for the answer that this execution makes */
#define TRIES_OF(caller) ((caller) == 0 -> TRIES : 1)
#ifdef FAULTS
byte faults = FAULTS;
#define fault_is_left (faults > 0)
#define count_fault faults--
#else
#define fault_is_left true
#define count_fault skip
#endif
#include "transitions.pml"
mtype = { idle, open, committing, committed, aborted };

/* ---- what each node stores ---- */

typedef Row {
	mtype state = none;
	byte fence;
	byte body;              /* which execution made the outcome */
	bit passed              /* its lease has passed */
};
typedef Node {
	bit opened;             /* the slot's sequence: open here, */
	byte epoch;             /* and its epoch */
	byte floor;             /* once.fence_floor_seq: new intents begin above it */
	byte lock;              /* the transaction, counted from 1, that holds the intent's advisory lock or its row */
	bit exclusive;          /* once_job.close_slot holds the slot's lock */
	Row row
};
Node node[2];

/* ---- a transaction of each caller, on the node that it asks ---- */

typedef Tx {
	mtype status = idle;
	bit at;
	bit inside;             /* the slot's lock, shared */
	mtype event;            /* the change of the row that becomes visible with COMMIT; 0: none */
	Row to;
	byte effect;            /* which execution made the effect of this transaction; 0: none */
	bit ready               /* ELSEWHERE: PREPARE TRANSACTION on the effect's node */
};
Tx tx[CALLERS];
byte decided[CALLERS];          /* ELSEWHERE: a prepared effect whose transaction has committed here */

/* ---- the truth ---- */

byte effects;                   /* committed effects of the intent */
byte told;                      /* the body of the first answer that was acknowledged */
byte granted;                   /* the highest fence of any claim so far */
byte opening;                   /* the highest epoch so far */
bit shut[2];                    /* once_job.close_slot has said that the slot is closed here and nobody is inside */
#define committed_effects (effects + (decided[0] != 0) + (decided[1] != 0))
#define remembered(n) (node[n].row.state == succeeded)

inline happens()
{
	effects++;
	assert(effects <= 1)                                    /* 1: at most one committed effect, over all nodes */
}

inline acknowledge(body_)
{
	assert(told == 0 || told == body_);                     /* 2: every later attempt gets the same, on each node */
	assert(committed_effects == 1);                                    /* 1: and it is true */
	told = body_
}

inline erase(row_)
{
	row_.state = none;
	row_.fence = 0;
	row_.body = 0;
	row_.passed = 0
}

inline copy(to_, from_)
{
	to_.state = from_.state;
	to_.fence = from_.fence;
	to_.body = from_.body;
	to_.passed = from_.passed
}

/* ---- transactions ---- */

inline let_go(t)
{
	if
	:: node[tx[t].at].lock == t + 1 -> node[tx[t].at].lock = 0
	:: else
	fi;
	tx[t].inside = 0;
	tx[t].event = 0;
	tx[t].effect = 0;
	tx[t].ready = 0;
	erase(tx[t].to)
}

inline roll_back(t)
{
	let_go(t);
	tx[t].status = aborted
}

inline write(t, event_, state_, fence_, body_)
{
	tx[t].event = event_;
	tx[t].to.state = state_;
	tx[t].to.fence = fence_;
	tx[t].to.body = body_
}

bit behind;                     /* the node from which the slot moves has changes that have not been applied at the other */
bit moving;                      /* the publication exists: once._is_moving */
bit following;                  /* logical replication runs */
bit from;                       /* the node from which the slot moves; from the other, nothing is copied */

proctype backend(byte t)
{
end:
	do
	:: atomic {                                             /* PREPARE TRANSACTION on the effect's node */
		tx[t].status == committing && ELSEWHERE && tx[t].effect != 0 && !tx[t].ready ->
#ifdef ONE_PHASE_COMMIT
		happens();                                      /* COMMIT there, alone */
		tx[t].effect = 0
#else
		tx[t].ready = 1
#endif
	   }
	:: atomic {                                             /* COMMIT */
		tx[t].status == committing && (!ELSEWHERE || tx[t].effect == 0 || tx[t].ready) ->
		if
		:: tx[t].event != 0 ->
			assert(!shut[tx[t].at]);                /* nothing is written where the slot is closed */
			change(node[tx[t].at].row.state, tx[t].event, tx[t].to.state);
			if
			:: tx[t].event == claim ->
				assert(tx[t].to.fence > granted);       /* fences never repeat */
				granted = tx[t].to.fence
			:: else
			fi;
			copy(node[tx[t].at].row, tx[t].to);
			behind = behind || (following && tx[t].at == from)
		:: else
		fi;
		if
		:: tx[t].effect != 0 && !ELSEWHERE -> happens()
		:: tx[t].effect != 0 && ELSEWHERE -> assert(!decided[t]); decided[t] = tx[t].effect
		:: else
		fi;
		let_go(t);
		tx[t].status = committed
	   }
	:: atomic { decided[t] != 0 -> decided[t] = 0; happens() }     /* COMMIT PREPARED, by this session or by Citus's recovery */
	:: d_step {                                             /* it fails, is killed, or finds its client gone; the server crashes */
		(tx[t].status == committing || tx[t].status == open) && fault_is_left ->
		count_fault;
		let_go(t);
		tx[t].status = aborted
	   }
	od
}

/* ---- callers ---- */

#ifdef NO_GUARD
#define lock_is_free(n) true
#define serves(n) true
#else
#define lock_is_free(n) (!node[n].exclusive)
#define serves(n) (node[n].opened)
#endif

/*
 * BEGIN on either node, since a router may be out of date, and the guard: once._serves. It is two steps: the slot's lock, then the
 * slot's sequence.
 */
inline enter(t)
{
	atomic {
		tx[t].status != open && tx[t].status != committing ->
		if
		:: tx[t].at = 0
		:: tx[t].at = 1
		fi;
		tx[t].status = open
	};
	/* once._serves: pg_try_advisory_xact_lock_shared */
	if
	:: atomic { tx[t].status == open && lock_is_free(tx[t].at) -> tx[t].inside = 1 }
	:: atomic { tx[t].status == open && !lock_is_free(tx[t].at) -> roll_back(t) }
	:: tx[t].status == aborted
	fi;
	/* once._serves: pg_sequence_last_value */
	if
	:: atomic { tx[t].status == open && serves(tx[t].at) }
	:: atomic { tx[t].status == open && !serves(tx[t].at) -> roll_back(t) }         /* P4097 */
	:: tx[t].status == aborted
	fi
}

#define here node[tx[me].at]
#define next_fence (here.row.state == none -> here.floor + 1 : here.row.fence + 1)
#define may_proceed (here.lock == 0 && (here.row.state == none || here.row.state == failed_retryable || \
	(here.row.state == processing && here.row.passed)))

/* What once.start and once.claim decide by. Told to proceed: nothing has happened, on any node. */
inline look(me)
{
	if
	:: here.row.state == succeeded -> acknowledge(here.row.body); roll_back(me)
	:: here.row.state != succeeded && !may_proceed -> roll_back(me)         /* P4029 */
	:: may_proceed -> assert(committed_effects == 0); here.lock = me + 1      /* 5 */
	fi
}

proctype caller(byte me)
{
	byte tries, execution, fence;

	do
	:: tries < TRIES_OF(me) ->
		atomic { tries++; execution = EXECUTION(me, tries) };
		enter(me);
		if
		:: atomic { tx[me].status == open -> look(me) }                                 /* once.start, or once.claim */
		:: tx[me].status == aborted
		fi;
		if
		:: tx[me].status == aborted -> goto ended
		:: atomic { tx[me].status == open && me >= LEASED -> tx[me].effect = execution }                /* once.start: the effect */
			/* once.finish; the guard again: P4097 if the slot is closing */
			if
			:: atomic { tx[me].status == open && serves(tx[me].at) ->
				tx[me].to.fence = next_fence;
				write(me, finish, succeeded, tx[me].to.fence, execution);
				tx[me].status = committing
			   }
			:: atomic { tx[me].status == open && !serves(tx[me].at) -> roll_back(me) }
			:: tx[me].status == aborted
			fi
		:: atomic { tx[me].status == open && me < LEASED ->                             /* once.claim */
			fence = next_fence;
			write(me, claim, processing, fence, 0);
			tx[me].status = committing
		   }
		fi;
		/* COMMIT, and its answer, if it comes */
		if
		:: atomic { tx[me].status == committed && fence == 0 -> acknowledge(execution) }
		:: tx[me].status == committed
		:: tx[me].status == aborted -> goto ended
		fi;
		do
		:: fence == 0 -> break
		:: fence != 0 ->
			/* once.complete with the effect in its transaction, or once.fail; on either node, and perhaps late */
			enter(me);
			if
			:: atomic {
				tx[me].status == open && here.lock == 0 ->      /* else it waits for the row */
				if
				:: here.row.state == processing && here.row.fence == fence ->
					here.lock = me + 1;
					if
					:: tx[me].effect = execution; write(me, complete, succeeded, fence, execution)
					:: write(me, fail, failed_retryable, fence, 0)
					fi;
					tx[me].status = committing
				:: else -> fence = 0; roll_back(me)             /* P4010, P4011: the fence is lost */
				fi
			   }
			:: tx[me].status == aborted
			fi;
			if
			:: tx[me].status == committed -> fence = 0
			:: tx[me].status == aborted                             /* P4097, or no answer: it reports again, */
			:: tx[me].status == aborted -> fence = 0                /* or is gone */
			fi
		od;
ended:		atomic { execution = 0; fence = 0; tx[me].status = idle; tx[me].at = 0 }
	:: tries >= TRIES_OF(me) -> break
	od
}

/* ---- what just happens ---- */

/* A lease passes, on each node that has the row. */
proctype world()
{
end:	do
	:: atomic { node[0].row.state == processing && !node[0].row.passed -> node[0].row.passed = 1 }
	:: atomic { node[1].row.state == processing && !node[1].row.passed -> node[1].row.passed = 1 }
	od
}

/* once_job.keep_step: the keeper of each node forgets an intent without an effect, and raises the floor to its fence; not while slots move. */
inline forget(n)
{
	assert(!shut[n]);
	node[n].floor = (node[n].row.fence > node[n].floor -> node[n].row.fence : node[n].floor);
	erase(node[n].row)
}

#define may_forget(n) (!moving && lock_is_free(n) && serves(n) && node[n].lock == 0 && node[n].row.state == failed_retryable)
proctype keeper()
{
end:	do
	:: atomic { may_forget(0) -> forget(0) }
	:: atomic { may_forget(1) -> forget(1) }
	od
}

/* ---- pgonce rehome ---- */

byte kills = KILLS;
bit gone;                       /* killed: see nemesis */
bit busy;
bit was_open;                   /* it has closed the slot in a transaction that is still open */
bit handed;                     /* once.slot_move.handed_to: only the other node may open the slot with the source's epoch */
bit sent;                       /* once._move_open is on its way to the other node, also if the command is killed */

#define nobody_inside(n) (!(tx[0].inside && tx[0].at == n) && !(tx[1].inside && tx[1].at == n))
#define target (1 - from)

/* once_job.open_slot */
inline open_slot(n, epoch_)
{
	assert(!node[0].opened && !node[1].opened);             /* the slot is open on at most one node */
	assert(epoch_ > opening);
	opening = epoch_;
	node[n].epoch = epoch_;
	node[n].opened = 1;
	shut[n] = 0
}

/* once._move_forget: DELETE on the old node. */
inline delete_old()
{
	assert(node[target].opened && node[target].epoch >= node[from].epoch);  /* nothing is deleted before the other has opened */
	erase(node[from].row)
}

/* The target: the subscription applies changes, at any moment; and once._move_open, which looks whether the memory has arrived. */
proctype receiver()
{
end:	do
	:: atomic { following && behind -> copy(node[target].row, node[from].row); behind = 0 }
	:: atomic {
		sent ->
		sent = 0;
		if
		:: !node[target].opened -> open_slot(target, node[from].epoch + 1 - handed)
		:: else
		fi
	   }
	od
}

/* It runs again and again until the slot has arrived: so it begins at any point at which it was killed. */
proctype mover()
{
	byte moved;

	do
	:: moved < MOVES ->
		{
		busy = 1;
		/* classify: once.slots() and once.slot_move, on both nodes */
again:		if
		:: node[target].opened -> goto opened
#ifndef NO_HAND_OVER
		:: !node[target].opened && !node[from].opened && handed -> goto handed_over
#endif
		:: else
		fi;
		/* once._move_back */
		if
		:: atomic { !node[from].opened -> open_slot(from, node[from].epoch + 1) }
		:: node[from].opened
		fi;
		moving = 1;                                     /* CREATE PUBLICATION: the keepers forget nothing more */
		atomic { erase(node[target].row) };             /* once._move_forget: what an earlier run has copied */
#ifndef OPEN_BEFORE_COPIED
		/* CREATE SUBSCRIPTION: the copy of a snapshot, and then all changes since */
		atomic { copy(node[target].row, node[from].row); following = 1; behind = 0 };
#endif
		/* once._move_close: the sequence, at once; then the lock */
		atomic { was_open = 1; node[from].opened = 0 };
#ifdef COPY_BEFORE_CLOSED
		atomic { !behind -> following = 0 };
#endif
#ifdef CLOSE_DOES_NOT_WAIT
		node[from].exclusive = 1;
#else
		if
		:: atomic { nobody_inside(from) -> node[from].exclusive = 1 }
		:: atomic { node[from].opened = 1; was_open = 0; following = 0; goto again }    /* --wait is over */
		fi;
#endif
#ifdef OPEN_BEFORE_CLOSE_COMMITS
		sent = 1;
		node[target].opened;
#endif
		atomic { was_open = 0; node[from].exclusive = 0; shut[from] = 1 };      /* COMMIT */
#ifndef OPEN_BEFORE_COPIED
		/* once._move_arrived: all changes have arrived; later: DROP SUBSCRIPTION */
		atomic { !behind -> following = 0 };
#endif
#ifdef DELETE_BEFORE_OPEN
		atomic { delete_old() };
#endif
		/* once._move_hand_over */
#ifndef OPEN_BEFORE_CLOSE_COMMITS
		atomic { handed = 1; node[from].epoch++ };
#endif
handed_over:
		/* once._move_open: the fence floor, and the slot */
#ifndef LOWER_FENCE_FLOOR
		atomic { node[target].floor = (node[from].floor > node[target].floor -> node[from].floor : node[target].floor) };
#endif
#ifndef OPEN_BEFORE_CLOSE_COMMITS
		sent = 1;
		node[target].opened;
#endif
#ifdef OPEN_BEFORE_COPIED
		atomic { copy(node[target].row, node[from].row) };
#endif
opened:		atomic { delete_old() };
		atomic { !sent -> moved++; from = target; handed = 0; moving = 0; busy = 0 }
		} unless { gone }
		/* The session of once._move_close ends: it opens the slot again, or leaves it closed. */
		if
		:: gone ->
			atomic {
				if
				:: was_open -> node[from].opened = 1
				:: true
				fi;
				was_open = 0; node[from].exclusive = 0; following = 0; behind = 0; busy = 0; gone = 0
			};
#ifdef NOT_RUN_AGAIN
			break
#endif
		:: else
		fi
	:: moved == MOVES -> break
	od
}

proctype nemesis()
{
end:	do
	:: atomic { busy && !gone && kills > 0 -> kills--; gone = 1 }
	od
}

/* ---- the promises about several nodes, as formulas ---- */

/* 1: An intent has at most one committed effect, over all nodes. */
ltl single { [] (effects <= 1) }

/* A slot is never open on two nodes. */
ltl alone { [] !(node[0].opened && node[1].opened) }

/* 1, 2: An effect is remembered on some node, for ever, once its transaction has ended. */
#define still_committing (tx[0].status == committing || tx[1].status == committing)
ltl together { [] (effects > 0 -> (remembered(0) || remembered(1) || still_committing)) }

/* A slot does not stay closed: once failures cease, a node opens it. */
ltl arrives { [] <> (node[0].opened || node[1].opened) }

init
{
	atomic {
		node[0].opened = 1;
		node[0].epoch = 1;
		node[1].epoch = 1;
		opening = 1;
		run backend(0); run backend(1); run caller(0); run caller(1); run world(); run keeper(); run receiver(); run mover(); run nemesis()
	}
}
