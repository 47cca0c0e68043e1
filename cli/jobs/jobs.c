/* SPDX-License-Identifier: PostgreSQL */
/* jobs.c: see jobs.h. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "connect.h"
#include "conninfo.h"
#include "jobs.h"
#include "listen.h"
#include "notify.h"
#include "runtime.h"

#define CONFIG_STANDARD "pgonce.conf"

typedef struct job {
	const job_kind *kind;
	const config *config;
	const config_section *section;
	job_options options;
	char *conninfo;
	pthread_t thread;
	int ended_fd; /* notified of the end */
	int exit_code;
	char *problem;
} job;

/* The jobs to run, from a file. */
typedef struct job_set {
	config *config;
	job *jobs;
	size_t count;
} job_set;

/* Its errors: a line for each, and a hint for the last. */
typedef struct findings {
	char *problems;
	const char *hint;
} findings;

__attribute__((format(printf, 2, 3))) static void find_wrong(findings *findings, const char *format, ...)
{
	va_list arguments;
	char *problem = NULL;

	va_start(arguments, format);
	int length = vasprintf(&problem, format, arguments);
	va_end(arguments);
	config_problem_add(&findings->problems, length < 0 ? cli_duplicate("out of memory") : problem);
}

/* ---- which sections */

/* "orders, stock", of the sections of that kind; free it. */
static char *names_of(const config *config, const char *kind)
{
	char *names = cli_duplicate("");

	for (size_t i = 0; i < config_section_count(config); i++) {
		const config_section *section = config_section_at(config, i);
		if (strcmp(section->kind, kind) == 0) {
			cli_append(&names, "%s%s", names[0] == '\0' ? "" : ", ", section->name);
		}
	}
	return names;
}

static void no_such(findings *findings, const config *config, const job_kind *kind, const char *name)
{
	char *names = names_of(config, kind->kind);

	if (names[0] == '\0') {
		find_wrong(findings, "%s has no [%s NAME] section", config_path(config), kind->kind);
		findings->hint = "pgonce help";
	} else {
		find_wrong(findings, "%s has no [%s %s]; its %s: %s", config_path(config), kind->kind, name, kind->plural,
		           names);
	}
	free(names);
}

static void add_job(job_set *set, const job_kind *kind, const config_section *section)
{
	for (size_t i = 0; i < set->count; i++) {
		if (set->jobs[i].section == section) {
			return; /* named twice */
		}
	}
	set->jobs[set->count++] = (job){.kind = kind, .config = set->config, .section = section};
}

static void choose(const cli_invocation *invocation, const job_kind *kind, job_set *set, findings *findings)
{
	set->jobs = cli_allocate((config_section_count(set->config) + 1) * sizeof *set->jobs);
	for (int i = 0; i < invocation->operand_count; i++) {
		const config_section *section = config_find(set->config, kind->kind, invocation->operands[i]);
		if (section == NULL) {
			no_such(findings, set->config, kind, invocation->operands[i]);
		} else {
			add_job(set, kind, section);
		}
	}
	for (size_t i = 0; i < config_section_count(set->config) && invocation->operand_count == 0; i++) {
		const config_section *section = config_section_at(set->config, i);
		if (strcmp(section->kind, kind->kind) == 0) {
			add_job(set, kind, section);
		}
	}
	if (set->count == 0 && findings->problems == NULL) {
		no_such(findings, set->config, kind, "");
	}
}

/* ---- their databases */

static const config_entry *dsn_entry(const config_section *section)
{
	for (size_t i = 0; section != NULL && i < section->entry_count; i++) {
		if (strcmp(section->entries[i].name, "dsn") == 0) {
			return &section->entries[i];
		}
	}
	return NULL;
}

/* The section's own dsn, the file's, --dsn, the environment, in this order. NULL: it is wrong. */
static char *conninfo_of(const cli_invocation *invocation, const config *config, const config_section *section,
                         findings *findings)
{
	const config_section *in = section;
	const config_entry *entry = dsn_entry(section);
	cli_invocation own = *invocation;
	char wrong[CONNINFO_PROBLEM_BYTES];

	if (entry == NULL) {
		in = config_find(config, "", "");
		entry = dsn_entry(in);
	}
	if (entry == NULL && invocation->given[OPTION_DSN] && !conninfo_good(invocation->text[OPTION_DSN], wrong)) {
		find_wrong(findings, "option --dsn: %s", wrong);
		findings->hint = "pgonce help, and the PostgreSQL manual: Connection Strings";
		return NULL;
	}
	if (entry == NULL) {
		return connect_conninfo(invocation);
	}
	if (!conninfo_good(entry->value, wrong)) {
		config_problem_add(&findings->problems, config_problem(config, in, entry, "%s", wrong));
		findings->hint = "the PostgreSQL manual: Connection Strings";
		return NULL;
	}
	own.given[OPTION_DSN] = true;
	own.text[OPTION_DSN] = entry->value;
	return connect_conninfo(&own);
}

/* ---- checking */

/* Two that use the same exclusive thing: each alone is right. */
static void check_takers(const job_set *set, findings *findings)
{
	const config_section *taker = NULL;

	for (size_t i = 0; i < set->count; i++) {
		const job *job = &set->jobs[i];
		const char *taken = job->kind->takes == NULL ? NULL : job->kind->takes(job->section);
		if (taken != NULL && taker != NULL) {
			find_wrong(findings, "[%s %s] and [%s %s] cannot both have %s", job->kind->kind, taker->name,
			           job->kind->kind, job->section->name, taken);
			findings->hint = "name one of them: pgonce relay NAME";
		}
		taker = taken != NULL ? job->section : taker;
	}
}

static void check_all(const cli_invocation *invocation, job_set *set, findings *findings)
{
	for (size_t i = 0; i < set->count; i++) {
		job *job = &set->jobs[i];
		char *problem = NULL;
		(void)job->kind->check(job->config, job->section, &problem);
		config_problem_add(&findings->problems, problem);
		job->conninfo = conninfo_of(invocation, job->config, job->section, findings);
	}
	check_takers(set, findings);
}

static void job_set_free(job_set *set)
{
	for (size_t i = 0; i < set->count; i++) {
		free(set->jobs[i].conninfo);
		free(set->jobs[i].problem);
	}
	free(set->jobs);
	config_free(set->config);
	*set = (job_set){0};
}

static void warn_of_secrets(const config *config, const job_kind *kind)
{
	const speaker speaker = {.kind = kind->kind, .name = "*"};
	char *warning = config_exposed(config);
	char quoted[RUNTIME_QUOTE_BYTES];

	if (warning != NULL) {
		runtime_log(&speaker, RUNTIME_WARNING, "exposed", "problem=%s", runtime_quote(warning, quoted));
	}
	free(warning);
}

static const char *path_of(const cli_invocation *invocation)
{
	return invocation->given[OPTION_CONFIG] ? invocation->text[OPTION_CONFIG] : CONFIG_STANDARD;
}

/* Reads the file, and finds all errors in it. True: there are none. */
static bool load(const cli_invocation *invocation, const job_kind *kind, job_set *set, findings *findings)
{
	*set = (job_set){0};
	*findings = (struct findings){0};
	(void)config_read_some(path_of(invocation), &set->config, &findings->problems);
	if (set->config == NULL) {
		findings->hint = "write one, or name it with --config FILE";
		return false;
	}
	choose(invocation, kind, set, findings);
	if (set->count > 0) {
		warn_of_secrets(set->config, kind);
	}
	check_all(invocation, set, findings);
	return findings->problems == NULL;
}

/* At the start: each to standard error. */
static int refuse(const cli_invocation *invocation, findings *findings)
{
	char *at = findings->problems;

	for (const char *problem = strsep(&at, "\n"); problem != NULL; problem = strsep(&at, "\n")) {
		cli_fail(invocation, CLI_USAGE, at == NULL ? findings->hint : NULL, "%s", problem);
	}
	free(findings->problems);
	return CLI_USAGE;
}

/* ---- running */

static void *run_job(void *argument)
{
	job *job = argument;
	const speaker speaker = {.kind = job->kind->kind, .name = job->section->name};

	job->exit_code = job->kind->run(job->config, job->section, &job->options, &job->problem);
	if (job->exit_code != CLI_OK) {
		char quoted[RUNTIME_QUOTE_BYTES];
		runtime_log(&speaker, RUNTIME_ERROR, "failed", "problem=%s",
		            runtime_quote(job->problem == NULL ? "" : job->problem, quoted));
		notify_stopping();
		runtime_stop();
	}
	const uint64_t one = 1;
	ssize_t written = write(job->ended_fd, &one, sizeof one);
	(void)written; /* it counts further than there are threads */
	return NULL;
}

int jobs_metrics_start(const cli_invocation *invocation, const char *kind, const metrics_source *source,
                       jobs_metrics *result)
{
	const speaker speaker = {.kind = kind, .name = "*"};
	const char *address = invocation->text[OPTION_METRICS];
	char *problem = NULL;

	*result = (jobs_metrics){0};
	if (!invocation->given[OPTION_METRICS]) {
		return CLI_OK;
	}
	if (!listen_address_is_good(address)) {
		return cli_fail(invocation, CLI_USAGE, "127.0.0.1:9187 or [::1]:9187",
		                "option --metrics: '%s' is not an ADDRESS:PORT (numbers, or localhost)", address);
	}
	result->metrics = metrics_new();
	result->server = metrics_server_start(address, result->metrics, source, &problem);
	if (result->server == NULL) {
		int failed = cli_fail(invocation, CLI_FAILED, NULL, "%s", problem == NULL ? "out of memory" : problem);
		free(problem);
		jobs_metrics_stop(result);
		return failed;
	}
	runtime_log(&speaker, RUNTIME_INFO, "metrics", "address=%s", metrics_server_address(result->server));
	return CLI_OK;
}

void jobs_metrics_stop(jobs_metrics *metrics)
{
	metrics_server_stop(metrics->server);
	metrics_free(metrics->metrics);
	*metrics = (jobs_metrics){0};
}

/* Starts each in a thread. Returns how many started; fewer after an error message. */
static size_t start_threads(const cli_invocation *invocation, const job_set *set, int ended_fd, metrics *metrics)
{
	for (size_t i = 0; i < set->count; i++) {
		job *job = &set->jobs[i];
		job->ended_fd = ended_fd;
		job->options = (job_options){.conninfo = job->conninfo,
		                             .once = invocation->given[OPTION_ONCE],
		                             .log_batches = invocation->given[OPTION_VERBOSE],
		                             .metrics = metrics};
		int failed = pthread_create(&job->thread, NULL, run_job, job);
		if (failed != 0) {
			errno = failed;
			cli_fail(invocation, CLI_FAILED, NULL, "cannot start a thread: %m");
			runtime_stop();
			return i;
		}
	}
	return set->count;
}

/*
 * SIGHUP: reads the jobs of the file as it is now; then the running ones stop, when they have
 * finished what is in flight. False: the file has errors, or cannot be used, and everything
 * continues as before.
 */
static bool reload(const cli_invocation *invocation, const job_kind *kind, job_set *next)
{
	const speaker speaker = {.kind = kind->kind, .name = "*"};
	char quoted[RUNTIME_QUOTE_BYTES];
	findings findings;

	if (load(invocation, kind, next, &findings)) {
		notify_reloading();
		runtime_log(&speaker, RUNTIME_INFO, "reloading", "config=%s", runtime_quote(path_of(invocation), quoted));
		runtime_stop();
		return true;
	}
	char *at = findings.problems;
	for (const char *problem = strsep(&at, "\n"); problem != NULL; problem = strsep(&at, "\n")) {
		runtime_log(&speaker, RUNTIME_ERROR, "reload_failed", "problem=%s", runtime_quote(problem, quoted));
	}
	runtime_log(&speaker, RUNTIME_ERROR, "not_reloaded", "hint=\"the previous settings stay in use\"");
	free(findings.problems);
	job_set_free(next);
	return false;
}

/* Waits until all threads have ended. True: *next can begin. */
static bool await_threads(const cli_invocation *invocation, const job_kind *kind, int ended_fd, size_t count,
                          job_set *next)
{
	bool is_reloading = false;

	for (size_t ended = 0; ended < count;) {
		struct pollfd wait[] = {{.fd = ended_fd, .events = POLLIN},
		                        {.fd = is_reloading ? -1 : runtime_reload_fd(), .events = POLLIN}};
		uint64_t more = 0;
		(void)poll(wait, 2, -1);
		if (wait[0].revents != 0 && read(ended_fd, &more, sizeof more) == sizeof more) {
			ended += more;
		}
		if (wait[1].revents != 0 && runtime_reload_take() && !runtime_stopping()) {
			is_reloading = reload(invocation, kind, next);
		}
	}
	return is_reloading;
}

static int result_of(const cli_invocation *invocation, const job_set *set, size_t started)
{
	int result = started < set->count ? CLI_FAILED : CLI_OK;

	for (size_t i = 0; i < started; i++) {
		const job *job = &set->jobs[i];
		if (job->exit_code != CLI_OK && result == CLI_OK) {
			result = cli_fail(invocation, job->exit_code, NULL, "[%s %s] %s", job->kind->kind, job->section->name,
			                  job->problem == NULL ? "failed" : job->problem);
		}
	}
	return result;
}

static void tell_reloaded(const job_kind *kind, const job_set *set)
{
	const speaker speaker = {.kind = kind->kind, .name = "*"};
	char *names = cli_duplicate("");

	for (size_t i = 0; i < set->count; i++) {
		cli_append(&names, "%s%s", i == 0 ? "" : ",", set->jobs[i].section->name);
	}
	runtime_log(&speaker, RUNTIME_INFO, "reloaded",
	            "%s=%s hint=\"the command line and the environment stay in use until a restart\"", kind->plural, names);
	free(names);
}

/* Runs the set, and after each reload the next one. */
static int run_sets(const cli_invocation *invocation, const job_kind *kind, job_set *set, int ended_fd,
                    metrics *metrics)
{
	for (;;) {
		job_set next = {0};
		size_t started = start_threads(invocation, set, ended_fd, metrics);
		bool is_reloading = await_threads(invocation, kind, ended_fd, started, &next);
		for (size_t i = 0; i < started; i++) {
			pthread_join(set->jobs[i].thread, NULL);
		}
		int result = result_of(invocation, set, started);
		if (result != CLI_OK || !is_reloading || !runtime_go_on()) {
			job_set_free(&next);
			return result;
		}
		metrics_clear(metrics);
		job_set_free(set);
		*set = next;
		tell_reloaded(kind, set);
	}
}

static int run_all(const cli_invocation *invocation, const job_kind *kind, job_set *set)
{
	jobs_metrics metrics;
	int ended_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	if (ended_fd < 0) {
		return cli_fail(invocation, CLI_FAILED, NULL, "cannot make an event: %m");
	}
	if (invocation->given[OPTION_VERBOSE]) {
		runtime_log_level(RUNTIME_DEBUG);
	}
	int result = jobs_metrics_start(invocation, kind->kind, NULL, &metrics);
	if (result == CLI_OK) {
		result = run_sets(invocation, kind, set, ended_fd, metrics.metrics);
		jobs_metrics_stop(&metrics);
	}
	close(ended_fd);
	return result;
}

/* --check-config: no errors; prints notes. */
static void tell_checked(const cli_invocation *invocation, const job_kind *kind, const job_set *set)
{
	for (size_t i = 0; i < set->count; i++) {
		char *notes = kind->note(set->jobs[i].config, set->jobs[i].section);
		char *at = notes;
		for (const char *note = strsep(&at, "\n"); note != NULL; note = strsep(&at, "\n")) {
			cli_note(invocation, "%s", note);
		}
		free(notes);
	}
	cli_note(invocation, "%s: %zu of its %s can be run", path_of(invocation), set->count, kind->plural);
}

int jobs_run(const cli_invocation *invocation, const job_kind *kind)
{
	findings findings;
	job_set set;
	int result = CLI_OK;

	/* First: from now on SIGHUP ends nothing. */
	if (!invocation->given[OPTION_CHECK_CONFIG] && !runtime_stop_install()) {
		return cli_fail(invocation, CLI_FAILED, NULL, "cannot prepare for signals: %m");
	}
	if (!load(invocation, kind, &set, &findings)) {
		result = refuse(invocation, &findings);
	} else if (invocation->given[OPTION_CHECK_CONFIG]) {
		tell_checked(invocation, kind, &set);
	} else {
		result = run_all(invocation, kind, &set);
	}
	job_set_free(&set);
	return result;
}
