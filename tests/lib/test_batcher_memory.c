/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_batcher_memory.c: each allocation of the batcher fails in turn. An operation whose
 * allocation failed says "no memory" or gets through all the same, its neighbours get through,
 * nothing is leaked (the address sanitizer looks), and no intent is given to two or kept by nobody:
 * afterwards, with memory, each can be claimed or is claimed once.
 */
#include "fake.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
char *__wrap_strdup(const char *text);

/* Fails the allocation that brings this to 0, and `more` after it; below 0 none fails. */
static int countdown = -1;
static int more;

static bool fails_now(void)
{
	if (countdown > 0 && --countdown == 0) {
		countdown = more > 0 ? 1 : 0;
		more--;
		return true;
	}
	return false;
}

void *__wrap_malloc(size_t size)
{
	return fails_now() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
	return fails_now() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
	return fails_now() ? NULL : __real_realloc(old, size);
}

char *__wrap_strdup(const char *text)
{
	return fails_now() ? NULL : __real_strdup(text);
}

static fake rig;
static const char *const keys[] = {"a", "b", "c", "bad"};
static seen told[4][3]; /* claim, report, renewal */
static seen shared[3];  /* two renewals and a peek */
static int without_memory;

/* Submits, and lets want of memory be told as the callback would. */
static void submit(int i, int what)
{
	static const once_fingerprint print = {{1}};
	const once_intent intent = {.scope = "s", .key = keys[i], .tenant = ""};
	const once_outcome outcome = {.response_status = 200, .response_body = bytes_of("body"), .response_headers = "{}"};
	seen *seen = &told[i][what];
	once_error *error = NULL;
	once_code code = what == 0 ? once_batcher_claim(rig.batcher, &intent, &print, "me", 0, 0, note, seen, NULL, &error)
	                 : what == 1 ? once_batcher_complete(rig.batcher, &intent, 1, &outcome, note, seen, NULL, &error)
	                             : once_batcher_renew(rig.batcher, &intent, 1, 0, note, seen, NULL, &error);
	if (code != ONCE_OK) {
		note(seen, NULL, error);
		once_error_free(error);
	}
}

static void submit_shared(int i)
{
	const once_intent intent = {.scope = "s", .key = keys[i], .tenant = ""};
	once_error *error = NULL;
	once_code code = i == 2 ? once_batcher_peek(rig.batcher, &intent, note, &shared[i], NULL, &error)
	                        : once_batcher_renew(rig.batcher, &intent, 1, 0, note, &shared[i], NULL, &error);
	if (code != ONCE_OK) {
		note(&shared[i], NULL, error);
		once_error_free(error);
	}
}

/* One waits for a row on the connection of the reports; the others share a transaction on the other. */
static void share(void)
{
	memset(shared, 0, sizeof shared);
	snprintf(rig.locked_key, sizeof rig.locked_key, "%s", keys[0]);
	submit_shared(0);
	fake_turn(&rig);
	submit_shared(1);
	submit_shared(2);
	fake_turn(&rig);
	rig.locked_key[0] = '\0';
	fake_pass(&rig, 8000);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(shared[i].calls, 1);
		assert_true(shared[i].code == ONCE_OK || shared[i].code == ONCE_NO_MEMORY);
	}
}

/* Claims, renewals, reports; one element that spoils its statement; a lost connection. */
static void use_everything(fake_step loses)
{
	memset(told, 0, sizeof told);
	snprintf(rig.bad_key, sizeof rig.bad_key, "bad");
	snprintf(rig.bad_sqlstate, sizeof rig.bad_sqlstate, "22P02");
	rig.bad_count = -1;
	fake_lose(&rig, loses, 1);
	for (int i = 0; i < 4; i++) {
		submit(i, 0);
	}
	fake_pass(&rig, 8000);
	for (int i = 0; i < 3; i++) {
		submit(i, 2);
	}
	fake_pass(&rig, 8000);
	share();
	for (int i = 0; i < 3; i++) {
		submit(i, 1);
	}
	fake_pass(&rig, 8000);
}

/* Was it told once, and by what can be told? */
static void check(int i, int what, once_verdict good)
{
	const seen *seen = &told[i][what];
	assert_int_equal(seen->calls, 1);
	without_memory += seen->code == ONCE_NO_MEMORY;
	if (seen->code != ONCE_NO_MEMORY && !(i == 3 && seen->code == ONCE_DATABASE)) {
		assert_int_equal(seen->code, ONCE_OK);
		assert_true(seen->verdict == good || (what > 0 && told[i][0].code == ONCE_NO_MEMORY) ||
		            (what == 2 && seen->verdict == ONCE_REPORT_REFUSED));
	}
}

static void open_anew(fake_step loses)
{
	countdown = -1;
	fake_open(&rig, &(once_batcher_options){.prepare = loses == STEP_NONE});
}

static void each_allocation_fails_in_turn_and_its_neighbours_get_through(void **state)
{
	(void)state;
	static const fake_step steps[] = {STEP_NONE, STEP_STATEMENT, STEP_COMMITTED, STEP_TERMINATED};
	for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++) {
		for (int series = 0; series < 5; series += 4) {
			int n;
			for (n = 1; n < 1000; n++) {
				open_anew(steps[s]);
				countdown = n;
				more = series;
				use_everything(steps[s]);
				bool failed = countdown == 0 || more < series;
				countdown = -1;
				for (int i = 0; i < 4; i++) {
					check(i, 0, ONCE_NEW_CLAIM);
					if (i < 3) {
						check(i, 1, ONCE_STORED);
						check(i, 2, ONCE_STORED);
						const fake_intent *intent = fake_find(&rig, keys[i]);
						/* Whoever was told to run it was the only one. */
						assert_true(intent == NULL ? told[i][0].code == ONCE_NO_MEMORY : intent->granted == 1);
					}
				}
				assert_int_equal(count(&rig).pending, 0);
				assert_int_equal(count(&rig).pending_bytes, 0);
				fake_close(&rig);
				if (!failed) {
					break;
				}
			}
			assert_true(n > 30);
		}
	}
	assert_true(without_memory > 50);
	print_message("%d operations were told that there is no memory\n", without_memory);
}

extern int fail_libpq_countdown __attribute__((weak)); /* of fail_libpq.c, where that is loaded */

static void each_allocation_of_libpq_fails_in_turn_and_no_intent_is_given_to_two(void **state)
{
	(void)state;
	static const fake_step steps[] = {STEP_NONE, STEP_COMMITTED};
	if (&fail_libpq_countdown == NULL) {
		skip();
	}
	for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++) {
		int n;
		for (n = 1; n < 3000; n++) {
			open_anew(steps[s]);
			fail_libpq_countdown = n;
			use_everything(steps[s]);
			bool failed = fail_libpq_countdown == 0;
			fail_libpq_countdown = -1;
			for (int i = 0; i < 3; i++) {
				/* A connection that has no memory is given up, and all that it had goes again. */
				assert_int_equal(told[i][0].verdict, ONCE_NEW_CLAIM);
				assert_int_equal(told[i][1].verdict, ONCE_STORED);
				assert_int_equal(told[i][2].verdict, ONCE_STORED);
				assert_int_equal(fake_find(&rig, keys[i])->granted, 1);
			}
			assert_int_equal(told[3][0].code, ONCE_DATABASE);
			assert_int_equal(count(&rig).pending, 0);
			fake_close(&rig);
			if (!failed) {
				break;
			}
		}
		print_message("%d allocations of libpq failed in turn\n", n - 1);
		assert_true(n > 100);
	}
}

static void an_open_without_memory_leaves_nothing(void **state)
{
	(void)state;
	int n;
	for (n = 1; n < 100; n++) {
		once_poll *poll = NULL;
		once_error *error = NULL;
		countdown = n;
		more = 0;
		once_code code = once_poll_open("host=/tmp", NULL, &poll, &error);
		bool failed = countdown == 0;
		countdown = -1;
		if (!failed) {
			assert_ok(code, error);
			once_poll_close(poll);
			break;
		}
		assert_code(ONCE_NO_MEMORY, code, error);
		assert_null(poll);
	}
	assert_true(n > 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(each_allocation_fails_in_turn_and_its_neighbours_get_through),
	    cmocka_unit_test(each_allocation_of_libpq_fails_in_turn_and_no_intent_is_given_to_two),
	    cmocka_unit_test(an_open_without_memory_leaves_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
