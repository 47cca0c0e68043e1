/* SPDX-License-Identifier: PostgreSQL */
/* stall.c: see stall.h. */
#include "stall.h"

#include "runtime.h"

enum {
	STEP_MS = 5000,
	/* One for messages on their way at the first look, one for those that came meanwhile. */
	ANSWERS_MIN = 3
};

void wait_clock_go_on(wait_clock *clock)
{
	int64_t now_ms = runtime_now_ms();
	int64_t step_ms = clock->looked_ms == 0 ? 0 : now_ms - clock->looked_ms;

	clock->now_ms += step_ms < STEP_MS ? step_ms : STEP_MS;
	clock->looked_ms = now_ms;
}

void stall_moved(stall *stall)
{
	wait_clock_go_on(&stall->clock);
	stall->asked_ms = stall->clock.now_ms;
	stall->behind = false;
}

void stall_disconnected(stall *stall)
{
	if (!stall->is_anew) {
		stall_moved(stall);
	}
	stall->is_anew = false;
}

bool stall_waited(stall *stall)
{
	wait_clock_go_on(&stall->clock);
	if (stall->clock.now_ms - stall->asked_ms < stall->after_ms / 2) {
		return false;
	}
	stall->asked_ms = stall->clock.now_ms;
	return true;
}

void stall_answer(stall *stall, bool behind, uint64_t mark)
{
	if (behind && (!stall->behind || mark != stall->mark)) {
		stall->mark = mark;
		stall->behind_ms = stall->clock.now_ms;
		stall->answers = 0;
	}
	stall->behind = behind;
	stall->answers += stall->answers < ANSWERS_MIN;
}

bool stall_is(const stall *stall)
{
	return stall->behind && stall->answers >= ANSWERS_MIN && stall->clock.now_ms - stall->behind_ms >= stall->after_ms;
}

bool stall_wants_connection(stall *stall)
{
	int64_t now_ms = stall->clock.now_ms;

	if (!stall_is(stall) || now_ms - stall->behind_ms < 2 * stall->after_ms ||
	    now_ms - stall->anew_ms < stall->after_ms) {
		return false;
	}
	stall->anew_ms = now_ms;
	stall->is_anew = true;
	return true;
}
