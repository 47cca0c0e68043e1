/* SPDX-License-Identifier: PostgreSQL */
/*
 * names.c: the contract's words for states and verdicts, in both directions. A test compares the
 * states with once.state.
 */
#include "names.h"
#include "internal.h"

static const char *const state_names[] = {
    [ONCE_STATE_NONE] = "",
    [ONCE_STATE_PROCESSING] = "processing",
    [ONCE_STATE_SUCCEEDED] = "succeeded",
    [ONCE_STATE_FAILED_RETRYABLE] = "failed_retryable",
    [ONCE_STATE_FAILED_FINAL] = "failed_final",
    [ONCE_STATE_IN_DOUBT] = "in_doubt",
};

static const char *const verdict_names[] = {
    [ONCE_VERDICT_NONE] = "",
    /* spec: verdict-names */
    [ONCE_PROCEED] = "proceed",
    [ONCE_NEW_CLAIM] = "new_claim",
    [ONCE_REPLAY_SUCCESS] = "replay_success",
    [ONCE_PROCESSING_ACTIVE] = "processing_active",
    [ONCE_PROCESSING_STALE] = "processing_stale",
    [ONCE_RETRYABLE_FAILURE] = "retryable_failure",
    [ONCE_FINAL_FAILURE_STORED] = "final_failure",
    [ONCE_IN_DOUBT_STORED] = "in_doubt",
    [ONCE_EXPIRED_KEY] = "expired",
    [ONCE_MISMATCHED] = "mismatch",
    [ONCE_INVALID] = "invalid",
    [ONCE_ABSENT] = "absent",
    [ONCE_STORED] = "stored",
    [ONCE_REPEATED] = "repeated",
    [ONCE_REPORT_REFUSED] = "refused",
    /* end of spec */
};

enum {
	STATE_COUNT = sizeof state_names / sizeof state_names[0],
	VERDICT_COUNT = sizeof verdict_names / sizeof verdict_names[0],
};

const char *once_state_name(once_state state)
{
	return (unsigned)state < STATE_COUNT ? state_names[state] : "";
}

const char *once_verdict_name(once_verdict verdict)
{
	return (unsigned)verdict < VERDICT_COUNT ? verdict_names[verdict] : "";
}

static int index_of(const char *name, const char *const *names, int count)
{
	for (int i = 1; i < count; i++) {
		if (strcmp(name, names[i]) == 0) {
			return i;
		}
	}
	return 0;
}

once_state state_of_name(const char *name)
{
	return (once_state)index_of(name, state_names, STATE_COUNT);
}

once_verdict verdict_of_name(const char *name)
{
	return (once_verdict)index_of(name, verdict_names, VERDICT_COUNT);
}
