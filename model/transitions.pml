/* SPDX-License-Identifier: PostgreSQL */
/*
 * The words of the contract, and the table once.transition: one line for each change of state. tests/model compares this file
 * with the table in the database, and checks that each line happens in some configuration. `none` is SQL's NULL: no row.
 */
#ifdef NO_ASSERTIONS
#define assert(what) skip       /* so that a formula is seen to fail by itself */
#endif

mtype = { none, processing, succeeded, failed_retryable, failed_final, in_doubt };
mtype = { claim, start, finish, receive, renew, release, complete, fail, resolve, recover, retire_day, keep_step };

/* The row goes from one state to another because of an event: an error of the contract where its table does not say so. */
inline change(was, by, becomes)
{
	if
	:: was == none && by == claim && becomes == processing -> skip
	:: was == none && by == finish && becomes == succeeded -> skip
	:: was == none && by == finish && becomes == failed_retryable -> skip
	:: was == none && by == finish && becomes == failed_final -> skip
	:: was == none && by == receive && becomes == succeeded -> skip
	:: was == failed_retryable && by == claim && becomes == processing -> skip
	:: was == failed_retryable && by == claim && becomes == failed_final -> skip
	:: was == failed_retryable && by == finish && becomes == succeeded -> skip
	:: was == failed_retryable && by == finish && becomes == failed_retryable -> skip
	:: was == failed_retryable && by == finish && becomes == failed_final -> skip
	:: was == processing && by == claim && becomes == processing -> skip
	:: was == processing && by == claim && becomes == succeeded -> skip
	:: was == processing && by == start && becomes == succeeded -> skip
	:: was == processing && by == claim && becomes == in_doubt -> skip
	:: was == processing && by == retire_day && becomes == in_doubt -> skip
	:: was == processing && by == finish && becomes == succeeded -> skip
	:: was == processing && by == finish && becomes == failed_retryable -> skip
	:: was == processing && by == finish && becomes == failed_final -> skip
	:: was == processing && by == renew && becomes == processing -> skip
	:: was == processing && by == release && becomes == failed_retryable -> skip
	:: was == processing && by == complete && becomes == succeeded -> skip
	:: was == processing && by == fail && becomes == failed_retryable -> skip
	:: was == processing && by == fail && becomes == failed_final -> skip
	:: was == processing && by == fail && becomes == in_doubt -> skip
	:: was == in_doubt && by == claim && becomes == succeeded -> skip
	:: was == in_doubt && by == claim && becomes == processing -> skip
	:: was == in_doubt && by == complete && becomes == succeeded -> skip
	:: was == in_doubt && by == fail && becomes == failed_retryable -> skip
	:: was == in_doubt && by == fail && becomes == failed_final -> skip
	:: was == processing && by == resolve && becomes == succeeded -> skip
	:: was == processing && by == resolve && becomes == failed_retryable -> skip
	:: was == processing && by == resolve && becomes == failed_final -> skip
	:: was == in_doubt && by == resolve && becomes == succeeded -> skip
	:: was == in_doubt && by == resolve && becomes == failed_retryable -> skip
	:: was == in_doubt && by == resolve && becomes == failed_final -> skip
	:: was == failed_retryable && by == resolve && becomes == succeeded -> skip
	:: was == failed_retryable && by == resolve && becomes == failed_final -> skip
	:: was == processing && by == recover && becomes == succeeded -> skip
	:: was == processing && by == recover && becomes == in_doubt -> skip
	:: was == processing && by == recover && becomes == failed_final -> skip
	:: was == in_doubt && by == recover && becomes == succeeded -> skip
	:: was == in_doubt && by == recover && becomes == failed_retryable -> skip
	:: was == in_doubt && by == recover && becomes == failed_final -> skip
	:: was == processing && by == keep_step && becomes == in_doubt -> skip
	:: else -> assert(false)
	fi
}
