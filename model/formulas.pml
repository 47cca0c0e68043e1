/* SPDX-License-Identifier: PostgreSQL */
/*
 * The promises of design.md as formulas: about whole runs, where an assertion sees one moment. Each begins its comment with the
 * property that it is, and each is about intent 0, since what holds for one holds for any. model/check.py says in which
 * configurations they are searched, and by which mutation each is seen to fail; model/README.md, how to read them.
 */
#define answered (told_state[0] != 0)
#define stored_as_answered (row[0].state == told_state[0] && row[0].body == told[0])
#define holds_until(this, that) (that V (this || that))         /* this W that, in a form that makes a smaller search */
#define failed (row[0].state == failed_retryable || row[0].state == failed_final)

/* 1: An intent has at most one committed effect. */
ltl once { [] (effects[0] <= 1) }

/* 1: An answer is true, and stays true: success has its effect, and one; */
ltl lasting { [] (told_state[0] == succeeded -> [] (effects[0] == 1)) }

/* 1: and what was answered as failed for good never gets one. */
ltl barren { [] (told_state[0] == failed_final -> [] (effects[0] == 0)) }

/* 2: What is answered is stored by then, and stays so, in the day or in the archive, until it is forgotten. */
ltl kept { [] (answered -> holds_until(stored_as_answered, forgotten[0])) }

/* 2: Nobody gets another answer, even when it is forgotten. (For as many executions as the small configurations have.) */
#define stays(answer) (told[0] == answer -> [] (told[0] == answer))
ltl same { [] (stays(1) && stays(2) && stays(3) && stays(4)) }

/* 5: An attempt whose client was told "certainly not done" has no effect, nor ever gets one. */
#define never_happens(which) ((denied & (1 << which)) -> [] (effect_body[0] != which))
ltl undone { [] (never_happens(1) && never_happens(2) && never_happens(3) && never_happens(4)) }

/* 5: What is at work or in doubt stays that until the truth is known: nothing is guessed. */
#define open_question (row[0].state == processing || row[0].state == in_doubt)
#define truth_known ((row[0].state == succeeded && effects[0] == 1) || (failed && effects[0] == 0))
ltl unguessed { [] (open_question -> holds_until(open_question, truth_known)) }

/* 7: What was forgotten is never opened again: no row comes of it, */
ltl closed { [] (forgotten[0] -> [] (row[0].state == none)) }

/* 7: and no effect that it did not have. */
ltl spent { [] ((forgotten[0] && effects[0] == 0) -> [] (effects[0] == 0)) }

/* 7: What has answered, or has had its effect, is not forgotten before its retention has passed. */
ltl owed { [] ((answered || effects[0] > 0) -> holds_until(!forgotten[0], over[0])) }

/*
 * 5: A claim does not stay at work for ever: it ends, or is in doubt, or is stale in such a way that the next attempt takes it
 * over for certain. Once failures cease (FAULTS), and where something recovers (RECOVERY).
 */
#define safe_to_take_over (row[0].passed && ON_STALE != in_doubt && !USED_UP(row[0]) && effects[0] == 0 && at_work[0] == 0)
ltl ends { [] (row[0].state == processing -> <> (row[0].state != processing || safe_to_take_over)) }
