/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_names.c: the words for codes, states and verdicts, and the classification of SQLSTATEs. No
 * server.
 */
#include "support.h"

#include "names.h"

static void every_state_and_verdict_has_a_word_that_leads_back(void **state)
{
	(void)state;
	for (int i = ONCE_STATE_PROCESSING; i <= ONCE_STATE_IN_DOUBT; i++) {
		assert_true(once_state_name((once_state)i)[0] != '\0');
		assert_int_equal(state_of_name(once_state_name((once_state)i)), i);
	}
	for (int i = ONCE_PROCEED; i <= ONCE_REPORT_REFUSED; i++) {
		assert_true(once_verdict_name((once_verdict)i)[0] != '\0');
		assert_int_equal(verdict_of_name(once_verdict_name((once_verdict)i)), i);
	}
	assert_int_equal(state_of_name("no such word"), ONCE_STATE_NONE);
	assert_string_equal(once_state_name((once_state)99), "");
	assert_string_equal(once_verdict_name((once_verdict)99), "");
}

static void every_code_has_a_name_of_its_own(void **state)
{
	(void)state;
	for (int i = ONCE_OK; i <= ONCE_NOT_STARTED; i++) {
		assert_string_not_equal(once_code_name((once_code)i), "unknown");
		for (int j = 0; j < i; j++) {
			assert_string_not_equal(once_code_name((once_code)i), once_code_name((once_code)j));
		}
	}
	assert_string_equal(once_code_name((once_code)99), "unknown");
}

static void a_sqlstate_says_what_to_do(void **state)
{
	(void)state;
	assert_int_equal(once_code_of_sqlstate("P4002"), ONCE_MISMATCH);
	assert_int_equal(once_code_of_sqlstate("40001"), ONCE_SERIALIZATION);
	assert_int_equal(once_code_of_sqlstate("40P01"), ONCE_SERIALIZATION);
	assert_int_equal(once_code_of_sqlstate("08006"), ONCE_CONNECTION);
	assert_int_equal(once_code_of_sqlstate("57P01"), ONCE_CONNECTION);
	assert_int_equal(once_code_of_sqlstate("23505"), ONCE_DATABASE);
	assert_int_equal(once_code_of_sqlstate(""), ONCE_CONNECTION);
	assert_int_equal(once_code_of_sqlstate(NULL), ONCE_CONNECTION);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_state_and_verdict_has_a_word_that_leads_back),
	    cmocka_unit_test(every_code_has_a_name_of_its_own),
	    cmocka_unit_test(a_sqlstate_says_what_to_do),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
