/* SPDX-License-Identifier: PostgreSQL */
/*
 * run.c: pgonce run: claim, run CMD under the lease (supervise.c), store its output; or replay it
 * (replay.c).
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "connect.h"
#include "input.h"
#include "remains.h"
#include "replay.h"
#include "supervise.h"

enum {
	OUTPUT_BYTES_DEFAULT = 1024 * 1024,
	CLAIM_TRIES_MAX = 5, /* a race under SERIALIZABLE ends in 40001 */
	/* how long storing CMD's outcome is retried if the database does not answer */
	LEASES_OF_PATIENCE = 3,
	RETRY_MS = 500
};

typedef struct run {
	const cli_invocation *invocation;
	once_intent intent;
	char *conninfo;
	once_session *session; /* NULL while there is none */
	once_fingerprint fingerprint;
	once_answer *claim;
	int fence;
	int64_t lease_ms;
	int64_t renewed_at_ms;
	int input;
	child_signals signals;
	capture capture;
	int exit_status; /* of CMD, 128+n for a signal */
	int signal;      /* that killed it, or 0 */
	int write_error; /* the errno with which its output could not be written, or 0 */
} run;

/* The worker's name, for people: "pgonce run ann@build-7 pid 4711". */
static char *describe_owner(void)
{
	char host[128] = "";
	const struct passwd *user = getpwuid(geteuid());

	gethostname(host, sizeof host - 1);
	return cli_format("pgonce run %s@%s pid %d", user != NULL ? user->pw_name : "?", host, (int)getpid());
}

static int take_fingerprint(run *run)
{
	unsigned char digest[INPUT_DIGEST_BYTES];
	const char *path = run->invocation->text[OPTION_INPUT];
	once_error *error = NULL;

	int result = input_open(run->invocation, path, digest, &run->input);
	if (result != CLI_OK) {
		return result;
	}
	bytes request =
	    input_request(run->invocation->operands, run->invocation->operand_count, path != NULL ? digest : NULL);
	once_code code =
	    once_fingerprint_bytes(run->session, run->intent.tenant,
	                           (once_bytes){.data = request.data, .length = request.length}, &run->fingerprint, &error);
	bytes_free(&request);
	return code == ONCE_OK ? CLI_OK : cli_report_error(run->invocation, error);
}

/* Looks where the shell would look for it: 0, or the errno with which exec would fail. */
static int find_executable(const char *name)
{
	const char *path = getenv("PATH");
	int problem = ENOENT;

	if (strchr(name, '/') != NULL) {
		return access(name, X_OK) == 0 ? 0 : errno;
	}
	for (const char *at = path != NULL ? path : "/bin:/usr/bin"; name[0] != '\0' && at != NULL;
	     at = strchr(at, ':'), at = at != NULL ? at + 1 : NULL) {
		int length = (int)strcspn(at, ":");
		char *file = cli_format("%.*s%s%s", length, at, length > 0 ? "/" : "", name);
		/* A directory of PATH that cannot be searched is skipped, as shells do. */
		int found = access(file, X_OK) == 0 ? 0 : access(file, F_OK) == 0 ? EACCES : ENOENT;
		free(file);
		if (found == 0) {
			return 0;
		}
		problem = found == EACCES ? EACCES : problem;
	}
	return problem;
}

static int cannot_execute(const run *run, int problem)
{
	return cli_fail(run->invocation, problem == ENOENT ? CLI_COMMAND_NOT_FOUND : CLI_NOT_EXECUTABLE,
	                "nothing was run and nothing is claimed: fix that, and run it again", "cannot execute %s: %s",
	                run->invocation->operands[0], strerror(problem));
}

/*
 * A claim binds the key to this command line, so a mistyped one must not claim. But a stored
 * outcome is replayed even if CMD no longer exists.
 */
static int check_command(run *run)
{
	once_answer *peek = NULL;
	once_error *error = NULL;
	int problem = find_executable(run->invocation->operands[0]);

	if (problem == 0) {
		return CLI_OK;
	}
	if (once_peek(run->session, &run->intent, &peek, &error) != ONCE_OK) {
		return cli_report_error(run->invocation, error);
	}
	bool absent = once_answer_verdict(peek) == ONCE_ABSENT;
	once_answer_free(peek);
	return absent ? cannot_execute(run, problem) : CLI_OK;
}

static int claim(run *run)
{
	const cli_invocation *invocation = run->invocation;
	int64_t lease_ms = cli_number(invocation, OPTION_LEASE, 0);
	int64_t retention_ms = cli_number(invocation, OPTION_RETENTION, 0);
	bool takes_over = invocation->given[OPTION_ON_STALE] && strcmp(invocation->text[OPTION_ON_STALE], "takeover") == 0;
	once_intent intent = run->intent;
	char *owner = describe_owner();
	once_error *error = NULL;
	once_code code = ONCE_SERIALIZATION;
	intent.on_stale = takes_over ? ONCE_ON_STALE_TAKEOVER : ONCE_ON_STALE_IN_DOUBT;

	for (int tries = 0; tries < CLAIM_TRIES_MAX && code == ONCE_SERIALIZATION; tries++) {
		once_error_free(error);
		error = NULL;
		code = once_claim(run->session, &intent, &run->fingerprint, owner, lease_ms, retention_ms, &run->claim, &error);
	}
	free(owner);
	return code == ONCE_OK ? CLI_OK : cli_report_error(invocation, error);
}

/*
 * Reports a verdict that is not an error of a call, in the contract's own words for that SQLSTATE.
 */
static int refuse(run *run, int exit_code, const char *sqlstate, const char *more)
{
	PGresult *text =
	    connect_query(once_session_connection(run->session), SQL_ERROR_TEXT, 1, (const char *const[]){sqlstate});
	bool known = PQresultStatus(text) == PGRES_TUPLES_OK && PQntuples(text) == 1;
	char *intent = cli_intent_text(&run->intent);
	char *detail = cli_format("%s%s%s", intent, more[0] != '\0' ? "; " : "", more);
	const char *hint = known ? PQgetvalue(text, 0, 1) : "";
	if (exit_code == CLI_IN_DOUBT) {
		hint = "Find out what CMD did, and end its remaining processes; then decide: pgonce resolve --scope S --key K "
		       "--as "
		       "STATE --reason WHY.";
	}

	cli_report(run->invocation, &(cli_problem){.exit_code = exit_code,
	                                           .sqlstate = sqlstate,
	                                           .message = known ? PQgetvalue(text, 0, 0) : "the intent cannot be run",
	                                           .detail = detail,
	                                           .hint = hint});
	free(detail);
	free(intent);
	PQclear(text);
	return exit_code;
}

static int refuse_active(run *run)
{
	once_answer *peek = NULL;
	char *more = NULL;

	/* Only for a better message; if the attempt ended in the meantime, it says less. */
	if (once_peek(run->session, &run->intent, &peek, NULL) == ONCE_OK && once_answer_owner(peek) != NULL) {
		more = cli_format("attempt %d by %s, lease until %s", once_answer_attempts(peek), once_answer_owner(peek),
		                  once_answer_lease_until(peek) == NULL ? "?" : once_answer_lease_until(peek));
	} else {
		more = cli_duplicate("");
	}
	int exit_code = refuse(run, CLI_ACTIVE, "P4029", more);
	free(more);
	once_answer_free(peek);
	return exit_code;
}

static void tell(const run *run, const char *what, once_state state)
{
	const cli_invocation *invocation = run->invocation;

	if (invocation->given[OPTION_JSON]) {
		json_t *json = json_pack("{s:{s:s, s:s, s:s, s:i, s:i, s:i, s:s?}}", "run", "what", what, "verdict",
		                         once_verdict_name(once_answer_verdict(run->claim)), "state", once_state_name(state),
		                         "exit_status", run->exit_status, "fence", once_answer_fence(run->claim), "attempts",
		                         once_answer_attempts(run->claim), "traceparent", once_answer_traceparent(run->claim));
		json_dumpf(json, stderr, JSON_COMPACT | JSON_PRESERVE_ORDER);
		fputc('\n', stderr);
		json_decref(json);
	} else if (invocation->given[OPTION_VERBOSE]) {
		cli_note(invocation, "%s: %s, state %s, exit status %d, attempt %d, fence %d", what,
		         once_verdict_name(once_answer_verdict(run->claim)), once_state_name(state), run->exit_status,
		         once_answer_attempts(run->claim), once_answer_fence(run->claim));
	}
}

/* The length of the claim's lease: as requested, or from the scope's policy. */
static int learn_lease(run *run)
{
	PGresult *left = NULL;
	const char *until = once_answer_lease_until(run->claim);

	if (run->invocation->given[OPTION_LEASE] || until == NULL) {
		run->lease_ms = cli_number(run->invocation, OPTION_LEASE, 60 * 1000);
		return CLI_OK;
	}
	int result = connect_run(run->invocation, once_session_connection(run->session), SQL_LEASE_LEFT, 1, &until,
	                         "cannot learn how long the lease is", &left);
	if (result == CLI_OK) {
		int64_t left_ms = strtoll(PQgetvalue(left, 0, 0), NULL, 10);
		run->lease_ms = left_ms > 0 ? left_ms : 1;
	}
	PQclear(left);
	return result;
}

/* The work certainly never started: the next attempt may run at once. */
static void release(run *run)
{
	bool held = false;
	once_error *error = NULL;

	if (once_release(run->session, &run->intent, run->fence, &held, &error) != ONCE_OK) {
		cli_note(run->invocation, "the claim could not be released and holds until its lease passes: %s",
		         once_error_message(error));
		once_error_free(error);
	}
}

/*
 * The trace of this call: a malformed one is not stored (W3C Trace Context, section 3.2.2.3), and
 * does not prevent the run.
 */
static void take_trace(run *run)
{
	bool given = run->invocation->given[OPTION_TRACEPARENT];

	run->intent.traceparent = given ? run->invocation->text[OPTION_TRACEPARENT] : getenv("TRACEPARENT");
	if (given && !once_traceparent_valid(run->intent.traceparent)) {
		cli_note(run->invocation, "--traceparent is not of version 00 (00-32 hex digits-16-2) and is not stored");
	}
}

static void export_intent(const run *run)
{
	const char *stored = once_answer_traceparent(run->claim);
	char number[12];

	setenv("PGONCE_TENANT", run->intent.tenant, 1);
	setenv("PGONCE_SCOPE", run->intent.scope, 1);
	setenv("PGONCE_KEY", run->intent.key, 1);
	snprintf(number, sizeof number, "%d", run->fence);
	setenv("PGONCE_FENCE", number, 1);
	snprintf(number, sizeof number, "%d", once_answer_attempts(run->claim));
	setenv("PGONCE_ATTEMPT", number, 1);
	if (run->invocation->given[OPTION_TRACEPARENT]) {
		setenv("TRACEPARENT", run->intent.traceparent, 1);
	}
	/* Not one inherited from an outer pgonce. */
	if (stored != NULL) {
		setenv("PGONCE_TRACEPARENT", stored, 1);
	} else {
		unsetenv("PGONCE_TRACEPARENT");
	}
}

/* One try to store the outcome. */
static once_code report_outcome(run *run, once_error **error)
{
	char headers[128];
	char message[64];
	once_outcome outcome = {.response_status = run->exit_status, .response_headers = headers};

	if (run->session == NULL) {
		once_code code = once_session_open(run->conninfo, &run->session, error);
		if (code != ONCE_OK) {
			return code;
		}
	}
	snprintf(headers, sizeof headers, "{\"content-type\": \"%s\", \"exit-status\": \"%d\"}", CAPTURE_CONTENT_TYPE,
	         run->exit_status);
	outcome.response_body = (once_bytes){.data = run->capture.bytes.data, .length = run->capture.bytes.length};
	if (run->exit_status == 0) {
		return once_complete(run->session, &run->intent, run->fence, &outcome, error);
	}
	if (run->signal != 0) {
		snprintf(message, sizeof message, "killed by signal %d (SIG%s)", run->signal,
		         sigabbrev_np(run->signal) != NULL ? sigabbrev_np(run->signal) : "?");
	} else {
		snprintf(message, sizeof message, "exited with status %d", run->exit_status);
	}
	outcome.error_code = run->signal != 0 ? "signal" : "exit";
	outcome.error_message = message;
	return once_fail(run->session, &run->intent, run->fence,
	                 run->invocation->given[OPTION_RETRY_FAILED] ? ONCE_FAILURE_RETRYABLE : ONCE_FAILURE_FINAL,
	                 &outcome, error);
}

/* Waits a moment before the next try; true if a signal says to give up. */
static bool told_to_give_up(const run *run)
{
	struct pollfd fd = {.fd = run->signals.fd, .events = POLLIN};
	struct signalfd_siginfo info;

	return poll(&fd, 1, RETRY_MS) > 0 && read(run->signals.fd, &info, sizeof info) == sizeof info &&
	       info.ssi_signo != SIGCHLD;
}

static int lease_lost(const run *run)
{
	char *intent = cli_intent_text(&run->intent);
	int exit_code = cli_report(
	    run->invocation,
	    &(cli_problem){.exit_code = CLI_LEASE_LOST,
	                   .sqlstate = run->exit_status == 0 ? "P4010" : "P4011",
	                   .message = "the lease was lost: another attempt holds the intent or has finished it; the "
	                              "outcome of CMD is not stored",
	                   .detail = intent,
	                   .hint =
	                       "pgonce show prints the stored outcome; use a longer --lease if CMD or the network pauses"});
	free(intent);
	return exit_code;
}

static int outcome_unknown(const run *run, once_error *error)
{
	char *intent = cli_intent_text(&run->intent);
	char *detail = cli_format("%s; CMD ended with status %d; %s", intent, run->exit_status, once_error_message(error));
	int exit_code = cli_report(
	    run->invocation,
	    &(cli_problem){
	        .exit_code = CLI_OUTCOME_UNKNOWN,
	        .sqlstate = once_error_sqlstate(error),
	        .message = "the outcome is unknown: CMD has ended, but its outcome could not be stored",
	        .detail = detail,
	        .hint = "once the lease has passed the next call finds the intent in doubt and runs nothing (with "
	                "--on-stale takeover: runs CMD again); decide with pgonce resolve when the database is back"});
	free(detail);
	free(intent);
	once_error_free(error);
	return exit_code;
}

/* The outcome is stored: returns CMD's exit status, or the code for undelivered output. */
static int tell_outcome(run *run, const char *what, once_state state)
{
	tell(run, what, state);
	if (run->write_error == 0) {
		return run->exit_status;
	}
	if (state == ONCE_STATE_FAILED_RETRYABLE) {
		/* The next call replays nothing, so CMD's failure is more important. */
		cli_note(run->invocation, "the output of CMD could not be written: %s", strerror(run->write_error));
		return run->exit_status;
	}
	return cli_fail(run->invocation, CLI_OUTPUT_LOST,
	                run->capture.truncated
	                    ? "its output was too large to be stored: it is lost; use a larger --output-max"
	                    : "run it again when the output can be written: it is replayed, and CMD does not run again",
	                "CMD ended with status %d and that is stored, but its output could not be written: %s",
	                run->exit_status, strerror(run->write_error));
}

/*
 * Stores the outcome, with as many retries as needed. Returns CMD's exit status, or the code of the
 * failure to store it.
 */
static int record(run *run)
{
	int64_t give_up_at_ms = run->renewed_at_ms + LEASES_OF_PATIENCE * run->lease_ms;
	bool told = false;

	capture_finish(&run->capture, run->exit_status);
	for (;;) {
		once_error *error = NULL;
		once_code code = report_outcome(run, &error);
		if (code == ONCE_OK) {
			bool retryable = run->invocation->given[OPTION_RETRY_FAILED];
			return tell_outcome(run, "ran",
			                    run->exit_status == 0 ? ONCE_STATE_SUCCEEDED
			                    : retryable           ? ONCE_STATE_FAILED_RETRYABLE
			                                          : ONCE_STATE_FAILED_FINAL);
		}
		if (code == ONCE_COMPLETION_REFUSED || code == ONCE_FAILURE_REFUSED) {
			once_error_free(error);
			return lease_lost(run);
		}
		if (code == ONCE_TOO_LARGE && !run->capture.truncated) {
			once_error_free(error);
			capture_truncate(&run->capture);
			capture_finish(&run->capture, run->exit_status);
			continue;
		}
		if (code != ONCE_CONNECTION && !once_error_retriable(error)) {
			return outcome_unknown(run, error);
		}
		if (run->session != NULL && PQstatus(once_session_connection(run->session)) != CONNECTION_OK) {
			once_session_close(run->session);
			run->session = NULL;
		}
		if (!told) {
			told = true;
			cli_note(run->invocation, "CMD has ended, but the database does not answer; trying again: %s",
			         once_error_message(error));
		}
		if (monotonic_ms() >= give_up_at_ms || told_to_give_up(run)) {
			return outcome_unknown(run, error);
		}
		once_error_free(error);
	}
}

/* The claim is ours: CMD runs. */
static int run_command(run *run)
{
	const cli_invocation *invocation = run->invocation;
	int64_t output_max = cli_number(invocation, OPTION_OUTPUT_MAX, OUTPUT_BYTES_DEFAULT);
	child child;

	run->fence = once_answer_fence(run->claim);
	int result = learn_lease(run);
	if (result != CLI_OK) {
		release(run);
		return result;
	}
	export_intent(run);
	int problem = child_prepare_signals(&run->signals);
	if (problem == 0) {
		problem = child_start(&child, invocation->operands, run->input, &run->signals);
	}
	if (problem != 0) {
		release(run);
		return cannot_execute(run, problem);
	}
	capture_start(&run->capture, (size_t)output_max);
	heartbeat *heartbeat = heartbeat_start(run->conninfo, run->session, &run->intent, run->fence, run->lease_ms);
	if (heartbeat == NULL) {
		/* Without renewals CMD must not continue. Its effect may have begun. */
		child_signal(&child, SIGKILL);
		child_let_go(&child);
		waitpid(child.pid, NULL, 0);
		return cli_fail(invocation, CLI_OUTCOME_UNKNOWN, NULL, "cannot make a thread: %s; CMD was killed",
		                strerror(errno));
	}
	supervision supervision = {.invocation = invocation,
	                           .child = &child,
	                           .signals = &run->signals,
	                           .heartbeat = heartbeat,
	                           .capture = &run->capture};
	problem = supervise(&supervision);
	child_let_go(&child);
	run->session = heartbeat_stop(heartbeat, &run->renewed_at_ms);
	if (problem != 0) {
		return cli_fail(invocation, CLI_OUTCOME_UNKNOWN, NULL, "cannot follow CMD: %s", strerror(problem));
	}
	run->write_error = supervision.write_error;
	run->signal = WIFSIGNALED(supervision.wait_status) ? WTERMSIG(supervision.wait_status) : 0;
	run->exit_status = run->signal != 0 ? CLI_SIGNAL_BASE + run->signal : WEXITSTATUS(supervision.wait_status);
	return supervision.lease_lost ? lease_lost(run) : record(run);
}

/* Why the outcome is unknown, and which of its processes still run, as far as they are visible. */
static char *describe_doubt(const run *run)
{
	const char *why = once_answer_error_message(run->claim);
	char *running = remains_find(&run->intent);
	char *text = cli_format("%s%s%s", why == NULL ? "" : why, why == NULL || running == NULL ? "" : "; ",
	                        running == NULL ? "" : running);

	free(running);
	return text;
}

static int act_on_verdict(run *run)
{
	once_verdict verdict = once_answer_verdict(run->claim);

	if (once_answer_may_run(run->claim)) {
		return run_command(run);
	}
	if (verdict == ONCE_REPLAY_SUCCESS || verdict == ONCE_FINAL_FAILURE_STORED) {
		run->exit_status = replay_outcome(run->invocation, &run->intent, run->claim, &run->write_error);
		return tell_outcome(run, "replayed", once_answer_state(run->claim));
	}
	if (verdict == ONCE_PROCESSING_ACTIVE) {
		return refuse_active(run);
	}
	if (verdict == ONCE_IN_DOUBT_STORED) {
		char *why = describe_doubt(run);
		int exit_code = refuse(run, CLI_IN_DOUBT, "P4031", why);
		free(why);
		return exit_code;
	}
	if (verdict == ONCE_EXPIRED_KEY) {
		return refuse(run, CLI_EXPIRED, "P4041", "");
	}
	return refuse(run, CLI_CONTRACT, "P4099", once_verdict_name(verdict));
}

int cli_run(const cli_invocation *invocation)
{
	run run = {.invocation = invocation, .intent = cli_intent(invocation), .input = -1, .signals = {.fd = -1}};
	int result = CLI_USAGE;

	take_trace(&run);
	run.conninfo = connect_conninfo(invocation);
	if (run.conninfo != NULL) {
		result = connect_session(invocation, run.conninfo, &run.session);
	}
	if (run.session != NULL) {
		result = take_fingerprint(&run);
	}
	if (result == CLI_OK) {
		result = check_command(&run);
	}
	if (result == CLI_OK) {
		result = claim(&run);
	}
	if (result == CLI_OK) {
		result = act_on_verdict(&run);
	}
	capture_free(&run.capture);
	once_answer_free(run.claim);
	once_session_close(run.session);
	if (run.input >= 0) {
		close(run.input);
	}
	if (run.signals.fd >= 0) {
		close(run.signals.fd);
	}
	free(run.conninfo);
	return result;
}
