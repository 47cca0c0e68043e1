/* SPDX-License-Identifier: PostgreSQL */
/*
 * decide.c: the gateway's state machine: what to do with a request after its claim, and what to
 * report after the upstream's answer. Pure; the whole table is in tests/http/test_decide.c. The
 * rule for all of it: run only what certainly did not run, report as done only what certainly is,
 * and put everything else in doubt.
 */
#include "http.h"

#include <string.h>
#include <strings.h>

static http_step refuse(http_problem *problem, http_problem with)
{
	*problem = with;
	return HTTP_REFUSE;
}

static http_step wait_or_refuse(const http_policy *policy, http_problem *problem)
{
	return policy->waits ? HTTP_WAIT : refuse(problem, HTTP_PROBLEM_ACTIVE);
}

/* The database could not be asked. */
static http_step pass_or_refuse(const http_policy *policy, http_problem *problem)
{
	return policy->fails_open ? HTTP_PASS : refuse(problem, HTTP_PROBLEM_UNAVAILABLE);
}

static http_step on_error(const http_policy *policy, once_code code, http_problem *problem)
{
	switch (code) {
	case ONCE_ACTIVE:
		return wait_or_refuse(policy, problem);
	/* spec: error-problems */
	case ONCE_SCOPE_REQUIRED:
	case ONCE_REFUSED:
		return refuse(problem, HTTP_PROBLEM_REFUSED);
	case ONCE_KEY_MALFORMED:
		return refuse(problem, HTTP_PROBLEM_KEY_MALFORMED);
	case ONCE_MISMATCH:
		return refuse(problem, HTTP_PROBLEM_MISMATCH);
	case ONCE_ALREADY_FINISHED:
	case ONCE_FINAL_FAILURE:
		return refuse(problem, HTTP_PROBLEM_NO_ANSWER);
	case ONCE_IN_DOUBT:
		return refuse(problem, HTTP_PROBLEM_IN_DOUBT);
	case ONCE_EXPIRED:
		return refuse(problem, HTTP_PROBLEM_EXPIRED);
	/* end of spec */
	case ONCE_PARTITION_MISSING:
	case ONCE_SERIALIZATION:
	case ONCE_CONNECTION:
	case ONCE_OUTCOME_UNKNOWN:
	case ONCE_DEADLINE:
	case ONCE_DATABASE:
	case ONCE_NO_MEMORY:
	case ONCE_OVERLOADED:
		return pass_or_refuse(policy, problem);
	case ONCE_SLOT_CLOSED: /* another node may remember the key: the request never passes */
	default:
		return refuse(problem, HTTP_PROBLEM_UNAVAILABLE);
	}
}

static http_step run(const once_answer *answer, http_problem *problem)
{
	if (once_answer_fence(answer) <= 0 || once_answer_state(answer) != ONCE_STATE_PROCESSING) {
		return refuse(problem, HTTP_PROBLEM_UNAVAILABLE);
	}
	return HTTP_RUN;
}

static http_step replay(const once_answer *answer, once_state expected, http_problem *problem)
{
	if (once_answer_state(answer) != expected) {
		return refuse(problem, HTTP_PROBLEM_UNAVAILABLE);
	}
	const char *result_type = once_answer_result_type(answer);
	if (result_type != NULL && strcmp(result_type, HTTP_RESULT_TOO_LARGE) == 0) {
		return refuse(problem, HTTP_PROBLEM_TOO_LARGE);
	}
	int status = once_answer_response_status(answer);
	return status >= 200 && status <= 599 ? HTTP_REPLAY : refuse(problem, HTTP_PROBLEM_NO_ANSWER);
}

http_step http_decide_claim(const http_policy *policy, const once_answer *answer, once_code code, http_problem *problem)
{
	if (answer == NULL) {
		return on_error(policy, code, problem);
	}
	switch (once_answer_verdict(answer)) {
	case ONCE_NEW_CLAIM:
	case ONCE_RETRYABLE_FAILURE:
		return run(answer, problem);
	case ONCE_PROCESSING_STALE:
		return policy->doubt_retries ? run(answer, problem) : refuse(problem, HTTP_PROBLEM_UNAVAILABLE);
	case ONCE_REPLAY_SUCCESS:
		return replay(answer, ONCE_STATE_SUCCEEDED, problem);
	case ONCE_FINAL_FAILURE_STORED:
		return replay(answer, ONCE_STATE_FAILED_FINAL, problem);
	case ONCE_PROCESSING_ACTIVE:
		return wait_or_refuse(policy, problem);
	/* spec: verdict-problems */
	case ONCE_IN_DOUBT_STORED:
		return refuse(problem, HTTP_PROBLEM_IN_DOUBT);
	case ONCE_EXPIRED_KEY:
		return refuse(problem, HTTP_PROBLEM_EXPIRED);
	case ONCE_MISMATCHED:
		return refuse(problem, HTTP_PROBLEM_MISMATCH);
	/* end of spec */
	default: /* not a verdict of a claim */
		return refuse(problem, HTTP_PROBLEM_UNAVAILABLE);
	}
}

static http_report doubt(const http_policy *policy)
{
	return policy->doubt_retries ? HTTP_REPORT_RETRYABLE : HTTP_REPORT_IN_DOUBT;
}

http_effect http_effect_parse(http_text value)
{
	static const char *const words[] = {
	    [HTTP_EFFECT_NONE] = "none", [HTTP_EFFECT_DONE] = "done", [HTTP_EFFECT_UNKNOWN] = "unknown"};
	for (http_effect effect = HTTP_EFFECT_NONE; effect <= HTTP_EFFECT_UNKNOWN; effect++) {
		if (value.length == strlen(words[effect]) && strncasecmp(value.data, words[effect], value.length) == 0) {
			return effect;
		}
	}
	return HTTP_EFFECT_UNSAID;
}

bool http_statuses_have(const http_statuses *statuses, int status)
{
	return status >= 300 && status <= 599 && (statuses->bits[status / 64] >> (status % 64) & 1) != 0;
}

bool http_statuses_add(http_statuses *statuses, http_text word)
{
	int number = 0;

	if (word.length != 3 || word.data[0] < '3' || word.data[0] > '5') {
		return false;
	}
	bool is_class = word.data[1] == 'x' && word.data[2] == 'x';
	for (size_t i = 0; i < 3 && !is_class; i++) {
		if (word.data[i] < '0' || word.data[i] > '9') {
			return false;
		}
		number = 10 * number + (word.data[i] - '0');
	}
	if (is_class && word.data[0] != '4') {
		return false; /* for a 3xx, 303 says done; for 5xx once_on_5xx decides */
	}
	int first = is_class ? 400 : number, last = is_class ? 499 : number;
	for (int status = first; status <= last; status++) {
		statuses->bits[status / 64] |= UINT64_C(1) << (status % 64);
	}
	return true;
}

static bool is_name(http_text name, const char *wanted)
{
	return name.length == strlen(wanted) && strncasecmp(name.data, wanted, name.length) == 0;
}

bool http_header_asks(int status, http_text name)
{
	static const struct {
		int status;
		const char *name;
	} asking[] = {
	    /* spec: statuses-asking */
	    /*
	     * Elsewhere: the header with which a status asks for the same request once more, so that
	     * nothing was done. A 4xx or a 503 asks with Retry-After.
	     */
	    {307, "Location"},
	    {308, "Location"},
	    {401, "WWW-Authenticate"},
	    {407, "Proxy-Authenticate"},
	    /* end of spec */
	};

	for (size_t i = 0; i < sizeof asking / sizeof *asking; i++) {
		if (status == asking[i].status && is_name(name, asking[i].name)) {
			return true;
		}
	}
	return ((status >= 400 && status <= 499) || status == 503) && is_name(name, "Retry-After");
}

bool http_status_gives_up(int status)
{
	return status == 408 || (status >= 502 && status <= 504);
}

static bool asks_by_itself(int status)
{
	static const int asking[] = {
	    /* spec: statuses-asking-always */
	    /*
	     * Elsewhere: HTTP itself says of these that the same request is sent again: over another
	     * connection (RFC 9110, 15.5.20), or after the handshake (RFC 8470, 5.2).
	     */
	    421, 425,
	    /* end of spec */
	};

	for (size_t i = 0; i < sizeof asking / sizeof *asking; i++) {
		if (status == asking[i]) {
			return true;
		}
	}
	return false;
}

static bool asks_again(const http_policy *policy, const http_ending *ending)
{
	return !policy->asking_ignored && (ending->asks || asks_by_itself(ending->status));
}

static http_effect done_if(bool is_stored)
{
	return is_stored ? HTTP_EFFECT_DONE : HTTP_EFFECT_UNKNOWN;
}

/*
 * What a status says about the effect, without any other statement. It is not enough that HTTP
 * calls it a refusal: services pass on the answer of a service behind them, after a part of their
 * work.
 */
static http_effect effect_of_status(const http_policy *policy, const http_ending *ending)
{
	int status = ending->status;
	if (status < 200 || status > 599) {
		return HTTP_EFFECT_UNKNOWN;
	}
	if (status < 300) {
		return HTTP_EFFECT_DONE;
	}
	if ((policy->released != NULL && http_statuses_have(policy->released, status)) || asks_again(policy, ending)) {
		return HTTP_EFFECT_NONE;
	}
	if (status < 400) {
		return done_if(policy->stored & HTTP_STORED_3XX);
	}
	if (status < 500) {
		return done_if((policy->stored & HTTP_STORED_4XX) && !http_status_gives_up(status));
	}
	/* A released status is one of the service, not of a proxy before it. */
	if (policy->server_errors == HTTP_EFFECT_NONE && http_status_gives_up(status)) {
		return HTTP_EFFECT_UNKNOWN;
	}
	return policy->server_errors;
}

/* A complete answer of the upstream itself. */
static http_report on_answer(const http_policy *policy, const http_ending *ending)
{
	int status = ending->status;
	http_effect effect = ending->effect != HTTP_EFFECT_UNSAID ? ending->effect : effect_of_status(policy, ending);
	bool replayable = status >= 200 && status <= 599 && !ending->too_large;
	bool refused = ending->effect == HTTP_EFFECT_UNSAID && status >= 400;

	switch (effect) {
	case HTTP_EFFECT_NONE:
		return HTTP_REPORT_RETRYABLE;
	case HTTP_EFFECT_DONE:
		return !replayable ? HTTP_REPORT_TOO_LARGE : refused ? HTTP_REPORT_FINAL : HTTP_REPORT_COMPLETE;
	default:
		return doubt(policy);
	}
}

http_report http_decide_ending(const http_policy *policy, const http_ending *ending)
{
	http_report report;
	if (ending->from_upstream && ending->complete) {
		report = on_answer(policy, ending);
	} else if (!ending->request_sent && !ending->from_upstream) {
		report = HTTP_REPORT_RELEASE;
	} else {
		report = doubt(policy);
	}
	if (!ending->lease_lost) {
		return report;
	}
	/*
	 * An intent that was put in doubt meanwhile cannot be released, but accepts a failure from its
	 * own attempt.
	 */
	return report == HTTP_REPORT_RELEASE    ? HTTP_REPORT_RETRYABLE
	       : report == HTTP_REPORT_IN_DOUBT ? HTTP_REPORT_NOTHING
	                                        : report;
}

const char *http_step_name(http_step step)
{
	static const char *const names[HTTP_STEPS] = {
	    [HTTP_RUN] = "run",       [HTTP_REPLAY] = "replay", [HTTP_WAIT] = "wait",
	    [HTTP_REFUSE] = "refuse", [HTTP_PASS] = "pass",
	};
	return (unsigned)step < HTTP_STEPS ? names[step] : "unknown";
}

const char *http_report_name(http_report report)
{
	static const char *const names[HTTP_REPORTS] = {
	    [HTTP_REPORT_COMPLETE] = "complete",   [HTTP_REPORT_FINAL] = "final",
	    [HTTP_REPORT_TOO_LARGE] = "too-large", [HTTP_REPORT_RELEASE] = "release",
	    [HTTP_REPORT_RETRYABLE] = "retryable", [HTTP_REPORT_IN_DOUBT] = "in-doubt",
	    [HTTP_REPORT_NOTHING] = "nothing",
	};
	return (unsigned)report < HTTP_REPORTS ? names[report] : "unknown";
}
