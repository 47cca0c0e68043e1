/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_decide.c: the gateway's state machine as tables: every verdict with every state and every
 * code gives its step, every ending its report; and, over all combinations, what must never come
 * out. The answers are made up here.
 */
#include "support.h"

struct once_answer {
	once_verdict verdict;
	once_state state;
	int fence;
	int status;
	const char *result_type;
};

once_verdict once_answer_verdict(const once_answer *answer)
{
	return answer->verdict;
}

once_state once_answer_state(const once_answer *answer)
{
	return answer->state;
}

int once_answer_fence(const once_answer *answer)
{
	return answer->fence;
}

int once_answer_response_status(const once_answer *answer)
{
	return answer->status;
}

const char *once_answer_result_type(const once_answer *answer)
{
	return answer->result_type;
}

/* ---- Claims ---- */

enum {
	ANY = -1,
	VERDICTS = ONCE_REPORT_REFUSED + 1,
	STATES = ONCE_STATE_IN_DOUBT + 1,
	CODES = ONCE_SLOT_CLOSED + 1,
	SAME = HTTP_PROBLEMS /* no problem is said */
};

/* The first row that matches counts. */
typedef struct claim_row {
	int verdict;
	int state;
	int has_fence;
	int has_status;
	int is_too_large;
	int doubt_retries;
	int waits;
	http_step step;
	int problem;
} claim_row;

static const claim_row claim_rows[] = {
    /* verdict, state, fence?, status 200-599?, result_type too large?, doubt_retries?, waits? */
    {ONCE_NEW_CLAIM, ONCE_STATE_PROCESSING, 1, ANY, ANY, ANY, ANY, HTTP_RUN, SAME},
    {ONCE_RETRYABLE_FAILURE, ONCE_STATE_PROCESSING, 1, ANY, ANY, ANY, ANY, HTTP_RUN, SAME},
    {ONCE_PROCESSING_STALE, ONCE_STATE_PROCESSING, 1, ANY, ANY, 1, ANY, HTTP_RUN, SAME},
    {ONCE_REPLAY_SUCCESS, ONCE_STATE_SUCCEEDED, ANY, ANY, 1, ANY, ANY, HTTP_REFUSE, HTTP_PROBLEM_TOO_LARGE},
    {ONCE_REPLAY_SUCCESS, ONCE_STATE_SUCCEEDED, ANY, 1, 0, ANY, ANY, HTTP_REPLAY, SAME},
    {ONCE_REPLAY_SUCCESS, ONCE_STATE_SUCCEEDED, ANY, 0, 0, ANY, ANY, HTTP_REFUSE, HTTP_PROBLEM_NO_ANSWER},
    {ONCE_FINAL_FAILURE_STORED, ONCE_STATE_FAILED_FINAL, ANY, ANY, 1, ANY, ANY, HTTP_REFUSE, HTTP_PROBLEM_TOO_LARGE},
    {ONCE_FINAL_FAILURE_STORED, ONCE_STATE_FAILED_FINAL, ANY, 1, 0, ANY, ANY, HTTP_REPLAY, SAME},
    {ONCE_FINAL_FAILURE_STORED, ONCE_STATE_FAILED_FINAL, ANY, 0, 0, ANY, ANY, HTTP_REFUSE, HTTP_PROBLEM_NO_ANSWER},
    {ONCE_PROCESSING_ACTIVE, ANY, ANY, ANY, ANY, ANY, 1, HTTP_WAIT, SAME},
    {ONCE_PROCESSING_ACTIVE, ANY, ANY, ANY, ANY, ANY, 0, HTTP_REFUSE, HTTP_PROBLEM_ACTIVE},
    {ONCE_IN_DOUBT_STORED, ANY, ANY, ANY, ANY, ANY, ANY, HTTP_REFUSE, HTTP_PROBLEM_IN_DOUBT},
    {ONCE_EXPIRED_KEY, ANY, ANY, ANY, ANY, ANY, ANY, HTTP_REFUSE, HTTP_PROBLEM_EXPIRED},
    {ONCE_MISMATCHED, ANY, ANY, ANY, ANY, ANY, ANY, HTTP_REFUSE, HTTP_PROBLEM_MISMATCH},
    /* What contradicts itself, and what no claim of this policy says. */
    {ANY, ANY, ANY, ANY, ANY, ANY, ANY, HTTP_REFUSE, HTTP_PROBLEM_UNAVAILABLE},
};

static bool fits(int wanted, int found)
{
	return wanted == ANY || wanted == found;
}

static const claim_row *expected_of_claim(const once_answer *answer, const http_policy *policy)
{
	bool too_large = answer->result_type != NULL && strcmp(answer->result_type, "once.too_large") == 0;
	for (const claim_row *row = claim_rows;; row++) {
		if (fits(row->verdict, (int)answer->verdict) && fits(row->state, (int)answer->state) &&
		    fits(row->has_fence, answer->fence > 0) &&
		    fits(row->has_status, answer->status >= 200 && answer->status <= 599) &&
		    fits(row->is_too_large, too_large) && fits(row->doubt_retries, policy->doubt_retries) &&
		    fits(row->waits, policy->waits)) {
			return row;
		}
	}
}

static void check_claim(const once_answer *answer, const http_policy *policy)
{
	http_problem problem = HTTP_PROBLEMS;
	/* The code says nothing where there is an answer. */
	http_step step = http_decide_claim(policy, answer, ONCE_CONNECTION, &problem);
	const claim_row *expected = expected_of_claim(answer, policy);
	if (step != expected->step || (int)problem != expected->problem) {
		fail_msg("verdict %d state %d fence %d status %d: expected %s problem %d, got %s problem %d", answer->verdict,
		         answer->state, answer->fence, answer->status, http_step_name(expected->step), expected->problem,
		         http_step_name(step), problem);
	}
	/* Whatever the table says: nothing runs that is not this attempt's. */
	if (step == HTTP_RUN) {
		assert_true(answer->fence > 0 && answer->state == ONCE_STATE_PROCESSING);
	}
	assert_int_not_equal(step, HTTP_PASS);
}

static void each_verdict_with_each_state_has_its_step(void **state)
{
	(void)state;
	static const int statuses[] = {0, -1, 100, 101, 199, 200, 201, 204, 303, 404, 503, 599, 600, 999};
	static const char *const result_types[] = {NULL, "", "charge", "once.too_large", "once.too_larger"};
	for (int i = 0; i < VERDICTS * STATES * 2 * 8; i++) {
		once_answer answer = {.verdict = (once_verdict)(i % VERDICTS), .state = (once_state)(i / VERDICTS % STATES)};
		int bits = i / VERDICTS / STATES;
		answer.fence = (bits & 1) != 0 ? 7 : 0;
		http_policy policy = {.stored = HTTP_STORED_DEFAULT};
		policy.doubt_retries = (bits & 2) != 0;
		policy.waits = (bits & 4) != 0;
		policy.fails_open = (bits & 8) != 0;
		for (size_t s = 0; s < COUNT(statuses); s++) {
			for (size_t t = 0; t < COUNT(result_types); t++) {
				answer.status = statuses[s];
				answer.result_type = result_types[t];
				check_claim(&answer, &policy);
			}
		}
	}
}

typedef struct code_row {
	once_code code;
	http_problem problem;
	bool opens; /* passes where the location fails open */
} code_row;

static const code_row code_rows[] = {
    {ONCE_OK, HTTP_PROBLEM_UNAVAILABLE, false},
    {ONCE_SCOPE_REQUIRED, HTTP_PROBLEM_REFUSED, false},
    {ONCE_KEY_MALFORMED, HTTP_PROBLEM_KEY_MALFORMED, false},
    {ONCE_MISMATCH, HTTP_PROBLEM_MISMATCH, false},
    {ONCE_REFUSED, HTTP_PROBLEM_REFUSED, false},
    {ONCE_COMPLETION_REFUSED, HTTP_PROBLEM_UNAVAILABLE, false},
    {ONCE_FAILURE_REFUSED, HTTP_PROBLEM_UNAVAILABLE, false},
    {ONCE_ALREADY_FINISHED, HTTP_PROBLEM_NO_ANSWER, false},
    {ONCE_ACTIVE, HTTP_PROBLEM_ACTIVE, false},
    {ONCE_FINAL_FAILURE, HTTP_PROBLEM_NO_ANSWER, false},
    {ONCE_IN_DOUBT, HTTP_PROBLEM_IN_DOUBT, false},
    {ONCE_EXPIRED, HTTP_PROBLEM_EXPIRED, false},
    {ONCE_MESSAGE_MISMATCH, HTTP_PROBLEM_UNAVAILABLE, false},
    {ONCE_EVENT_MISMATCH, HTTP_PROBLEM_UNAVAILABLE, false},
    {ONCE_TOO_LARGE, HTTP_PROBLEM_UNAVAILABLE, false},
    {ONCE_RESOLUTION_REFUSED, HTTP_PROBLEM_UNAVAILABLE, false},
    {ONCE_PARTITION_MISSING, HTTP_PROBLEM_UNAVAILABLE, true},
    {ONCE_UNKNOWN_STATE, HTTP_PROBLEM_UNAVAILABLE, false},
    {ONCE_SERIALIZATION, HTTP_PROBLEM_UNAVAILABLE, true},
    {ONCE_CONNECTION, HTTP_PROBLEM_UNAVAILABLE, true},
    {ONCE_OUTCOME_UNKNOWN, HTTP_PROBLEM_UNAVAILABLE, true},
    {ONCE_DEADLINE, HTTP_PROBLEM_UNAVAILABLE, true},
    {ONCE_DATABASE, HTTP_PROBLEM_UNAVAILABLE, true},
    {ONCE_CONTRACT, HTTP_PROBLEM_UNAVAILABLE, false},
    {ONCE_USAGE, HTTP_PROBLEM_UNAVAILABLE, false},
    {ONCE_NO_MEMORY, HTTP_PROBLEM_UNAVAILABLE, true},
    {ONCE_EFFECT, HTTP_PROBLEM_UNAVAILABLE, false},
    {ONCE_OVERLOADED, HTTP_PROBLEM_UNAVAILABLE, true},
    {ONCE_RELAY_FOREIGN, HTTP_PROBLEM_UNAVAILABLE, false},
    {ONCE_NOT_STARTED, HTTP_PROBLEM_UNAVAILABLE, false},
    {ONCE_UNFINISHED, HTTP_PROBLEM_UNAVAILABLE, false},
    {ONCE_ALREADY_STARTED, HTTP_PROBLEM_UNAVAILABLE, false},
    {ONCE_ANOTHER_FINGERPRINT, HTTP_PROBLEM_UNAVAILABLE, false},
    {ONCE_SLOT_CLOSED, HTTP_PROBLEM_UNAVAILABLE, false},
};

static void each_error_of_a_claim_has_its_step_and_never_runs(void **state)
{
	(void)state;
	assert_int_equal(COUNT(code_rows), CODES);
	for (int i = 0; i < CODES * 8; i++) {
		const code_row *row = &code_rows[i / 8];
		http_policy policy = {.stored = HTTP_STORED_DEFAULT};
		policy.fails_open = (i & 1) != 0;
		policy.waits = (i & 2) != 0;
		policy.doubt_retries = (i & 4) != 0;
		assert_int_equal(row->code, i / 8);
		http_problem problem = HTTP_PROBLEMS;
		http_step step = http_decide_claim(&policy, NULL, row->code, &problem);
		if (row->opens && policy.fails_open) {
			assert_int_equal(step, HTTP_PASS);
		} else if (row->code == ONCE_ACTIVE && policy.waits) {
			assert_int_equal(step, HTTP_WAIT);
		} else {
			assert_int_equal(step, HTTP_REFUSE);
			assert_int_equal(problem, row->problem);
		}
	}
}

static void a_code_of_a_later_library_is_refused_even_where_the_location_fails_open(void **state)
{
	(void)state;
	http_policy policy = {.fails_open = true, .waits = true, .doubt_retries = true};
	http_problem problem = HTTP_PROBLEMS;
	assert_int_equal(http_decide_claim(&policy, NULL, (once_code)CODES, &problem), HTTP_REFUSE);
	assert_int_equal(problem, HTTP_PROBLEM_UNAVAILABLE);
}

/* ---- Endings ---- */

typedef enum answer_class {
	NOT_FINAL, /* below 200, or 600 and more */
	C2XX,
	C3XX,
	C4XX,
	C4XX_AGAIN, /* 421, 425 */
	C4XX_LATE,  /* 408 */
	C5XX,
	C5XX_PROXY /* 502, 503, 504 */
} answer_class;

typedef struct status_row {
	int status;
	answer_class class;
} status_row;

static const status_row status_rows[] = {
    {-1, NOT_FINAL}, {0, NOT_FINAL},    {100, NOT_FINAL},  {101, NOT_FINAL},  {103, NOT_FINAL},  {199, NOT_FINAL},
    {200, C2XX},     {201, C2XX},       {204, C2XX},       {299, C2XX},       {300, C3XX},       {301, C3XX},
    {302, C3XX},     {303, C3XX},       {306, C3XX},       {307, C3XX},       {308, C3XX},       {309, C3XX},
    {399, C3XX},     {400, C4XX},       {401, C4XX},       {402, C4XX},       {403, C4XX},       {404, C4XX},
    {406, C4XX},     {407, C4XX},       {408, C4XX_LATE},  {409, C4XX},       {410, C4XX},       {413, C4XX},
    {420, C4XX},     {421, C4XX_AGAIN}, {422, C4XX},       {423, C4XX},       {424, C4XX},       {425, C4XX_AGAIN},
    {426, C4XX},     {428, C4XX},       {429, C4XX},       {430, C4XX},       {451, C4XX},       {499, C4XX},
    {500, C5XX},     {501, C5XX},       {502, C5XX_PROXY}, {503, C5XX_PROXY}, {504, C5XX_PROXY}, {505, C5XX},
    {520, C5XX},     {524, C5XX},       {561, C5XX},       {599, C5XX},       {600, NOT_FINAL},  {999, NOT_FINAL},
};

/*
 * The first row that matches counts. DOUBT stands for in doubt, or retryable where the location
 * says so.
 */
enum {
	DOUBT = HTTP_REPORTS
};

typedef struct ending_row {
	int from_upstream;
	int complete;
	int request_sent;
	int effect;
	int listed;
	int asks;
	int class;
	int stored;
	int server_errors;
	int too_large;
	int report;
} ending_row;

enum {
	UNSAID = HTTP_EFFECT_UNSAID,
	NONE = HTTP_EFFECT_NONE,
	DONE = HTTP_EFFECT_DONE,
	UNKNOWN = HTTP_EFFECT_UNKNOWN
};

static const ending_row ending_rows[] = {
    /*
     * from_upstream, complete, request_sent, Once-Effect, is it in once_release, does a header ask
     * (and is that believed), class, is the class stored, once_on_5xx, too_large
     */
    {0, ANY, 0, ANY, ANY, ANY, ANY, ANY, ANY, ANY, HTTP_REPORT_RELEASE},
    {0, ANY, 1, ANY, ANY, ANY, ANY, ANY, ANY, ANY, DOUBT},
    {1, 0, ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY, DOUBT},
    {1, 1, ANY, NONE, ANY, ANY, ANY, ANY, ANY, ANY, HTTP_REPORT_RETRYABLE},
    {1, 1, ANY, UNKNOWN, ANY, ANY, ANY, ANY, ANY, ANY, DOUBT},
    {1, 1, ANY, DONE, ANY, ANY, NOT_FINAL, ANY, ANY, ANY, HTTP_REPORT_TOO_LARGE},
    {1, 1, ANY, DONE, ANY, ANY, ANY, ANY, ANY, 0, HTTP_REPORT_COMPLETE},
    {1, 1, ANY, DONE, ANY, ANY, ANY, ANY, ANY, 1, HTTP_REPORT_TOO_LARGE},
    {1, 1, ANY, UNSAID, ANY, ANY, NOT_FINAL, ANY, ANY, ANY, DOUBT},
    {1, 1, ANY, UNSAID, ANY, ANY, C2XX, ANY, ANY, 0, HTTP_REPORT_COMPLETE},
    {1, 1, ANY, UNSAID, ANY, ANY, C2XX, ANY, ANY, 1, HTTP_REPORT_TOO_LARGE},
    {1, 1, ANY, UNSAID, 1, ANY, ANY, ANY, ANY, ANY, HTTP_REPORT_RETRYABLE},
    {1, 1, ANY, UNSAID, ANY, 1, ANY, ANY, ANY, ANY, HTTP_REPORT_RETRYABLE},
    {1, 1, ANY, UNSAID, ANY, ANY, C4XX_LATE, ANY, ANY, ANY, DOUBT},
    {1, 1, ANY, UNSAID, ANY, ANY, C3XX, 1, ANY, 0, HTTP_REPORT_COMPLETE},
    {1, 1, ANY, UNSAID, ANY, ANY, ANY, 1, ANY, 0, HTTP_REPORT_FINAL},
    {1, 1, ANY, UNSAID, ANY, ANY, ANY, 1, ANY, 1, HTTP_REPORT_TOO_LARGE},
    {1, 1, ANY, UNSAID, ANY, ANY, C3XX, 0, ANY, ANY, DOUBT},
    {1, 1, ANY, UNSAID, ANY, ANY, C4XX, 0, ANY, ANY, DOUBT},
    {1, 1, ANY, UNSAID, ANY, ANY, C4XX_AGAIN, 0, ANY, ANY, DOUBT},
    {1, 1, ANY, UNSAID, ANY, ANY, ANY, ANY, DONE, 0, HTTP_REPORT_FINAL},
    {1, 1, ANY, UNSAID, ANY, ANY, ANY, ANY, DONE, 1, HTTP_REPORT_TOO_LARGE},
    {1, 1, ANY, UNSAID, ANY, ANY, C5XX_PROXY, ANY, ANY, ANY, DOUBT},
    {1, 1, ANY, UNSAID, ANY, ANY, C5XX, ANY, NONE, ANY, HTTP_REPORT_RETRYABLE},
    {1, 1, ANY, UNSAID, ANY, ANY, C5XX, ANY, ANY, ANY, DOUBT},
};

static bool class_stored(answer_class class, uint32_t stored)
{
	switch (class) {
	case C2XX:
		return (stored & HTTP_STORED_2XX) != 0;
	case C3XX:
		return (stored & HTTP_STORED_3XX) != 0;
	case C4XX:
	case C4XX_AGAIN:
	case C4XX_LATE:
		return (stored & HTTP_STORED_4XX) != 0;
	default:
		return false;
	}
}

static http_report expected_of_ending(const http_policy *policy, const http_ending *ending, answer_class class)
{
	const ending_row *row = ending_rows;
	bool listed = policy->released != NULL && http_statuses_have(policy->released, ending->status);
	bool asks = !policy->asking_ignored && (ending->asks || class == C4XX_AGAIN);
	while (!(fits(row->from_upstream, ending->from_upstream) && fits(row->complete, ending->complete) &&
	         fits(row->request_sent, ending->request_sent) && fits(row->effect, (int)ending->effect) &&
	         fits(row->listed, listed) && fits(row->asks, asks) && fits(row->class, (int)class) &&
	         fits(row->stored, class_stored(class, policy->stored)) &&
	         fits(row->server_errors, (int)policy->server_errors) && fits(row->too_large, ending->too_large))) {
		row++;
	}
	if (row->report == DOUBT && policy->doubt_retries) {
		return HTTP_REPORT_RETRYABLE;
	}
	if (row->report == DOUBT) {
		return ending->lease_lost ? HTTP_REPORT_NOTHING : HTTP_REPORT_IN_DOUBT;
	}
	return row->report == HTTP_REPORT_RELEASE && ending->lease_lost ? HTTP_REPORT_RETRYABLE : (http_report)row->report;
}

/* Said once more without the table: what costs money when it goes wrong. */
static void check_money(const http_policy *policy, const http_ending *ending, answer_class class, http_report report)
{
	bool whole = ending->from_upstream && ending->complete;
	if (report == HTTP_REPORT_RELEASE) {
		assert_true(!ending->request_sent && !ending->from_upstream);
	}
	if (report == HTTP_REPORT_RETRYABLE && !policy->doubt_retries) {
		bool never_sent = !ending->request_sent && !ending->from_upstream;
		bool listed = policy->released != NULL && http_statuses_have(policy->released, ending->status);
		bool refused = class != NOT_FINAL && class != C2XX &&
		               (listed || (!policy->asking_ignored && (ending->asks || class == C4XX_AGAIN)) ||
		                (class == C5XX && policy->server_errors == HTTP_EFFECT_NONE));
		bool said = ending->effect == HTTP_EFFECT_NONE || (ending->effect == HTTP_EFFECT_UNSAID && refused);
		assert_true(never_sent || (whole && said));
	}
	if (whole && class == C2XX && ending->effect == HTTP_EFFECT_UNSAID) {
		assert_true(report == HTTP_REPORT_COMPLETE || report == HTTP_REPORT_TOO_LARGE);
	}
	if (report == HTTP_REPORT_COMPLETE || report == HTTP_REPORT_FINAL) {
		assert_true(whole && !ending->too_large && ending->status >= 200 && ending->status <= 599);
		assert_true((report == HTTP_REPORT_FINAL) == (ending->status >= 400 && ending->effect == HTTP_EFFECT_UNSAID));
	}
	if (report == HTTP_REPORT_TOO_LARGE) {
		assert_true(whole);
	}
}

static void each_ending_has_its_report(void **state)
{
	(void)state;
	for (size_t s = 0; s < COUNT(status_rows); s++) {
		http_statuses own = {{0}}, others;
		char word[12];
		(void)snprintf(word, sizeof word, "%d", status_rows[s].status);
		(void)http_statuses_add(&own, text_of(word));
		for (size_t i = 0; i < COUNT(own.bits); i++) {
			others.bits[i] = ~own.bits[i];
		}
		const http_statuses *const lists[] = {NULL, &own, &others, &others};
		for (uint32_t bits = 0; bits < 1 << 17; bits++) {
			http_policy policy = {.stored = bits & 7,
			                      .doubt_retries = (bits & 8) != 0,
			                      .server_errors = (http_effect)(bits >> 11 & 3),
			                      .released = lists[bits >> 13 & 3],
			                      .asking_ignored = (bits & 1 << 15) != 0};
			http_ending ending = {.status = status_rows[s].status,
			                      .effect = (http_effect)(bits >> 9 & 3),
			                      .asks = (bits & 1 << 16) != 0,
			                      .from_upstream = (bits & 16) != 0,
			                      .request_sent = (bits & 32) != 0,
			                      .complete = (bits & 64) != 0,
			                      .too_large = (bits & 128) != 0,
			                      .lease_lost = (bits & 256) != 0};
			http_report report = http_decide_ending(&policy, &ending);
			http_report expected = expected_of_ending(&policy, &ending, status_rows[s].class);
			if (report != expected) {
				fail_msg("status %d bits %x: expected %s, got %s", ending.status, bits, http_report_name(expected),
				         http_report_name(report));
			}
			check_money(&policy, &ending, status_rows[s].class, report);
		}
	}
}

/* What a retry of a service that lost COMMIT's answer depends on, said by itself. */
static void a_5xx_of_the_service_leaves_doubt_unless_it_or_the_location_says_more(void **state)
{
	(void)state;
	http_policy policy = {.stored = HTTP_STORED_DEFAULT};
	http_ending ending = {.status = 500, .from_upstream = true, .request_sent = true, .complete = true};
	assert_int_equal(http_decide_ending(&policy, &ending), HTTP_REPORT_IN_DOUBT);
	policy.server_errors = HTTP_EFFECT_NONE;
	assert_int_equal(http_decide_ending(&policy, &ending), HTTP_REPORT_RETRYABLE);
	policy.server_errors = HTTP_EFFECT_DONE;
	assert_int_equal(http_decide_ending(&policy, &ending), HTTP_REPORT_FINAL);
	ending.effect = HTTP_EFFECT_UNKNOWN;
	assert_int_equal(http_decide_ending(&policy, &ending), HTTP_REPORT_IN_DOUBT);
}

/* What a mesh proxy's 503, or a status that a service passed on, must not do by itself. */
static void no_status_releases_unless_the_answer_asks_or_the_location_lists_it(void **state)
{
	(void)state;
	for (int status = 300; status <= 599; status++) {
		http_policy policy = {.stored = HTTP_STORED_DEFAULT};
		http_ending ending = {.status = status, .from_upstream = true, .request_sent = true, .complete = true};
		bool again = status == 421 || status == 425;
		assert_int_equal(http_decide_ending(&policy, &ending) == HTTP_REPORT_RETRYABLE, again);
		ending.asks = true;
		assert_int_equal(http_decide_ending(&policy, &ending), HTTP_REPORT_RETRYABLE);
		policy.asking_ignored = true;
		assert_int_not_equal(http_decide_ending(&policy, &ending), HTTP_REPORT_RETRYABLE);
		http_statuses listed = {{0}};
		char word[4];
		(void)snprintf(word, sizeof word, "%d", status);
		assert_true(http_statuses_add(&listed, text_of(word)));
		policy.released = &listed;
		assert_int_equal(http_decide_ending(&policy, &ending), HTTP_REPORT_RETRYABLE);
		ending.effect = HTTP_EFFECT_UNKNOWN;
		assert_int_equal(http_decide_ending(&policy, &ending), HTTP_REPORT_IN_DOUBT);
	}
}

static void a_list_of_statuses_has_what_was_added(void **state)
{
	static const char *const bad[] = {"",    "2xx", "200", "299", "600", "999", "5xx",  "3xx", "4XX",
	                                  "x4x", "4x4", "40",  "all", "5 3", "50x", "4000", "-44", "4xx "};
	(void)state;
	for (int status = 300; status <= 599; status++) {
		http_statuses statuses = {{0}};
		char word[4];
		(void)snprintf(word, sizeof word, "%d", status);
		assert_true(http_statuses_add(&statuses, text_of(word)));
		for (int other = -1; other <= 1000; other++) {
			assert_int_equal(http_statuses_have(&statuses, other), other == status);
		}
	}
	http_statuses class = {{0}};
	assert_true(http_statuses_add(&class, text_of("4xx")));
	for (int status = 300; status <= 599; status++) {
		assert_int_equal(http_statuses_have(&class, status), status >= 400 && status <= 499);
	}
	for (size_t i = 0; i < COUNT(bad); i++) {
		http_statuses statuses = {{0}};
		assert_false(http_statuses_add(&statuses, text_of(bad[i])));
		for (size_t n = 0; n < COUNT(statuses.bits); n++) {
			assert_true(statuses.bits[n] == 0);
		}
	}
}

static void an_answer_asks_with_a_header_that_its_status_gives_a_meaning(void **state)
{
	(void)state;
	for (int status = 100; status <= 600; status++) {
		bool later = (status >= 400 && status <= 499) || status == 503;
		bool leads = status == 307 || status == 308;
		assert_int_equal(http_header_asks(status, text_of("Retry-After")), later);
		assert_int_equal(http_header_asks(status, text_of("retry-after")), later);
		assert_int_equal(http_header_asks(status, text_of("Location")), leads);
		assert_int_equal(http_header_asks(status, text_of("WWW-Authenticate")), status == 401);
		assert_int_equal(http_header_asks(status, text_of("proxy-authenticate")), status == 407);
		assert_false(http_header_asks(status, text_of("Retry-Afte")));
		assert_false(http_header_asks(status, text_of("Retry-After2")));
		assert_false(http_header_asks(status, text_of("")));
		assert_int_equal(http_status_gives_up(status),
		                 status == 408 || status == 502 || status == 503 || status == 504);
	}
}

static void an_effect_is_said_in_three_words_in_any_case(void **state)
{
	static const struct {
		const char *text;
		http_effect effect;
	} rows[] = {{"none", HTTP_EFFECT_NONE},       {"NONE", HTTP_EFFECT_NONE},        {"Done", HTTP_EFFECT_DONE},
	            {"unknown", HTTP_EFFECT_UNKNOWN}, {"uNkNoWn", HTTP_EFFECT_UNKNOWN},  {"", HTTP_EFFECT_UNSAID},
	            {"non", HTTP_EFFECT_UNSAID},      {"nonee", HTTP_EFFECT_UNSAID},     {"none ", HTTP_EFFECT_UNSAID},
	            {"\"none\"", HTTP_EFFECT_UNSAID}, {"none, done", HTTP_EFFECT_UNSAID}};
	(void)state;
	for (size_t i = 0; i < COUNT(rows); i++) {
		http_text text = {.data = rows[i].text, .length = strlen(rows[i].text)};
		assert_int_equal(http_effect_parse(text), rows[i].effect);
	}
	/* The value of a header is not terminated. */
	assert_int_equal(http_effect_parse((http_text){.data = "nonexistent", .length = 4}), HTTP_EFFECT_NONE);
}

/* ---- Names ---- */

static void steps_and_reports_have_names_of_their_own(void **state)
{
	(void)state;
	for (int i = 0; i < HTTP_STEPS; i++) {
		for (int j = 0; j < i; j++) {
			assert_string_not_equal(http_step_name((http_step)i), http_step_name((http_step)j));
		}
		assert_string_not_equal(http_step_name((http_step)i), http_step_name(HTTP_STEPS));
	}
	for (int i = 0; i < HTTP_REPORTS; i++) {
		for (int j = 0; j < i; j++) {
			assert_string_not_equal(http_report_name((http_report)i), http_report_name((http_report)j));
		}
		assert_string_not_equal(http_report_name((http_report)i), http_report_name(HTTP_REPORTS));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(each_verdict_with_each_state_has_its_step),
	    cmocka_unit_test(each_error_of_a_claim_has_its_step_and_never_runs),
	    cmocka_unit_test(a_code_of_a_later_library_is_refused_even_where_the_location_fails_open),
	    cmocka_unit_test(each_ending_has_its_report),
	    cmocka_unit_test(a_5xx_of_the_service_leaves_doubt_unless_it_or_the_location_says_more),
	    cmocka_unit_test(no_status_releases_unless_the_answer_asks_or_the_location_lists_it),
	    cmocka_unit_test(a_list_of_statuses_has_what_was_added),
	    cmocka_unit_test(an_answer_asks_with_a_header_that_its_status_gives_a_meaning),
	    cmocka_unit_test(an_effect_is_said_in_three_words_in_any_case),
	    cmocka_unit_test(steps_and_reports_have_names_of_their_own),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
