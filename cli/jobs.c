/* SPDX-License-Identifier: PostgreSQL */
/* jobs.c: see jobs.h. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "connect.h"
#include "conninfo.h"
#include "jobs.h"
#include "service.h"

#define CONFIG_STANDARD "pgonce.conf"

typedef struct job {
	const job_kind *kind;
	const config *config;
	const config_section *section;
	job_options options;
	char *conninfo;
	pthread_t thread;
	bool started;
	int exit_code;
	char *problem;
} job;

/* ---- which sections */

/* "orders, stock", of the sections of that kind; free it. */
static char *names_of(const config *config, const char *kind)
{
	char *names = cli_duplicate("");

	for (size_t i = 0; i < config_section_count(config); i++) {
		const config_section *section = config_section_at(config, i);
		if (strcmp(section->kind, kind) == 0) {
			char *longer = cli_format("%s%s%s", names, names[0] == '\0' ? "" : ", ", section->name);
			free(names);
			names = longer;
		}
	}
	return names;
}

static int no_such(const cli_invocation *invocation, const config *config, const job_kind *kind, const char *name)
{
	char *names = names_of(config, kind->kind);
	int result = names[0] == '\0'
	                 ? cli_fail(invocation, CLI_USAGE, "pgonce help", "%s has no [%s NAME] section",
	                            config_path(config), kind->kind)
	                 : cli_fail(invocation, CLI_USAGE, NULL, "%s has no [%s %s]; its %s: %s", config_path(config),
	                            kind->kind, name == NULL ? "" : name, kind->plural, names);

	free(names);
	return result;
}

static void add_job(job *jobs, size_t *count, const job_kind *kind, const config *config, const config_section *section)
{
	for (size_t i = 0; i < *count; i++) {
		if (jobs[i].section == section) {
			return; /* named twice */
		}
	}
	jobs[(*count)++] = (job){.kind = kind, .config = config, .section = section};
}

/* CLI_OK, with the chosen ones in jobs[], which has room for all sections. */
static int choose(const cli_invocation *invocation, const config *config, const job_kind *kind, job *jobs,
                  size_t *count)
{
	for (int i = 0; i < invocation->operand_count; i++) {
		const config_section *section = config_find(config, kind->kind, invocation->operands[i]);
		if (section == NULL) {
			return no_such(invocation, config, kind, invocation->operands[i]);
		}
		add_job(jobs, count, kind, config, section);
	}
	for (size_t i = 0; i < config_section_count(config) && invocation->operand_count == 0; i++) {
		const config_section *section = config_section_at(config, i);
		if (strcmp(section->kind, kind->kind) == 0) {
			add_job(jobs, count, kind, config, section);
		}
	}
	return *count > 0 ? CLI_OK : no_such(invocation, config, kind, NULL);
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

/* The section's own dsn, the file's, --dsn, the environment, in this order. NULL after saying what is wrong. */
static char *conninfo_of(const cli_invocation *invocation, const config *config, const config_section *section)
{
	const config_section *in = section;
	const config_entry *entry = dsn_entry(section);
	cli_invocation own = *invocation;
	char wrong[CONNINFO_PROBLEM_BYTES];

	if (entry == NULL) {
		in = config_find(config, "", "");
		entry = dsn_entry(in);
	}
	if (entry == NULL) {
		return connect_conninfo(invocation);
	}
	if (!conninfo_good(entry->value, wrong)) {
		char *problem = config_problem(config, in, entry, "dsn: %s", wrong);
		cli_fail(invocation, CLI_USAGE, "the PostgreSQL manual: Connection Strings", "%s", problem);
		free(problem);
		return NULL;
	}
	own.given[OPTION_DSN] = true;
	own.text[OPTION_DSN] = entry->value;
	return connect_conninfo(&own);
}

/* ---- checking and running */

/* Two that take the same: each alone is right. */
static int check_takers(const cli_invocation *invocation, const job *jobs, size_t count)
{
	const config_section *taker = NULL;

	for (size_t i = 0; i < count; i++) {
		const char *taken = jobs[i].kind->takes == NULL ? NULL : jobs[i].kind->takes(jobs[i].section);
		if (taken != NULL && taker != NULL) {
			return cli_fail(invocation, CLI_USAGE, "name one of them: pgonce relay NAME",
			                "[%s %s] and [%s %s] cannot both have %s", jobs[i].kind->kind, taker->name,
			                jobs[i].kind->kind, jobs[i].section->name, taken);
		}
		taker = taken != NULL ? jobs[i].section : taker;
	}
	return CLI_OK;
}

static int check_all(const cli_invocation *invocation, job *jobs, size_t count)
{
	int result = CLI_OK;

	for (size_t i = 0; i < count; i++) {
		char *problem = NULL;
		if (!jobs[i].kind->check(jobs[i].config, jobs[i].section, &problem)) {
			result = cli_fail(invocation, CLI_USAGE, NULL, "%s", problem);
			free(problem);
			continue;
		}
		jobs[i].conninfo = conninfo_of(invocation, jobs[i].config, jobs[i].section);
		result = jobs[i].conninfo == NULL ? CLI_USAGE : result;
	}
	return result == CLI_OK ? check_takers(invocation, jobs, count) : result;
}

static void *run_job(void *argument)
{
	job *job = argument;
	const service service = {.kind = job->kind->kind, .name = job->section->name};

	job->exit_code = job->kind->run(job->config, job->section, &job->options, &job->problem);
	if (job->exit_code != CLI_OK) {
		char quoted[SERVICE_QUOTE_BYTES];
		service_log(&service, SERVICE_ERROR, "failed", "problem=%s",
		            service_quote(job->problem == NULL ? "" : job->problem, quoted));
		service_stop();
	}
	return NULL;
}

int jobs_metrics_start(const cli_invocation *invocation, const char *kind, const metrics_source *source,
                       jobs_metrics *result)
{
	const service service = {.kind = kind, .name = "*"};
	const char *address = invocation->text[OPTION_METRICS];
	char *problem = NULL;

	*result = (jobs_metrics){0};
	if (!invocation->given[OPTION_METRICS]) {
		return CLI_OK;
	}
	if (!metrics_address_is_good(address)) {
		return cli_fail(invocation, CLI_USAGE, "127.0.0.1:9187 or [::1]:9187",
		                "option --metrics: '%s' is no ADDRESS:PORT (numbers, or localhost)", address);
	}
	result->metrics = metrics_new();
	result->server = metrics_server_start(address, result->metrics, source, &problem);
	if (result->server == NULL) {
		int failed = cli_fail(invocation, CLI_FAILED, NULL, "%s", problem == NULL ? "out of memory" : problem);
		free(problem);
		jobs_metrics_stop(result);
		return failed;
	}
	service_log(&service, SERVICE_INFO, "metrics", "address=%s", metrics_server_address(result->server));
	return CLI_OK;
}

void jobs_metrics_stop(jobs_metrics *metrics)
{
	metrics_server_stop(metrics->server);
	metrics_free(metrics->metrics);
	*metrics = (jobs_metrics){0};
}

/* Starts each in a thread, and waits until all have ended. */
static int run_threads(const cli_invocation *invocation, job *jobs, size_t count, metrics *metrics)
{
	int result = CLI_OK;

	for (size_t i = 0; i < count && result == CLI_OK; i++) {
		jobs[i].options = (job_options){.conninfo = jobs[i].conninfo,
		                                .once = invocation->given[OPTION_ONCE],
		                                .log_batches = invocation->given[OPTION_LOG_BATCHES],
		                                .metrics = metrics};
		int failed = pthread_create(&jobs[i].thread, NULL, run_job, &jobs[i]);
		jobs[i].started = failed == 0;
		if (failed != 0) {
			errno = failed;
			result = cli_fail(invocation, CLI_FAILED, NULL, "cannot start a thread: %m");
			service_stop();
		}
	}
	for (size_t i = 0; i < count; i++) {
		if (jobs[i].started) {
			pthread_join(jobs[i].thread, NULL);
		}
	}
	return result;
}

static int run_all(const cli_invocation *invocation, const job_kind *kind, job *jobs, size_t count)
{
	jobs_metrics metrics;

	if (!service_stop_install()) {
		return cli_fail(invocation, CLI_FAILED, NULL, "cannot prepare for signals: %m");
	}
	if (invocation->given[OPTION_LOG_BATCHES]) {
		service_log_level(SERVICE_DEBUG);
	}
	int result = jobs_metrics_start(invocation, kind->kind, NULL, &metrics);
	if (result != CLI_OK) {
		return result;
	}
	result = run_threads(invocation, jobs, count, metrics.metrics);
	jobs_metrics_stop(&metrics);
	for (size_t i = 0; i < count; i++) {
		if (jobs[i].started && jobs[i].exit_code != CLI_OK && result == CLI_OK) {
			result = cli_fail(invocation, jobs[i].exit_code, NULL, "[%s %s] %s", jobs[i].kind->kind,
			                  jobs[i].section->name, jobs[i].problem == NULL ? "failed" : jobs[i].problem);
		}
	}
	return result;
}

static void warn_of_secrets(const config *config, const job_kind *kind)
{
	const service service = {.kind = kind->kind, .name = "*"};
	char *warning = config_exposed(config);
	char quoted[SERVICE_QUOTE_BYTES];

	if (warning != NULL) {
		service_log(&service, SERVICE_WARNING, "exposed", "problem=%s", service_quote(warning, quoted));
	}
	free(warning);
}

int jobs_run(const cli_invocation *invocation, const job_kind *kind)
{
	const char *path = invocation->given[OPTION_CONFIG] ? invocation->text[OPTION_CONFIG] : CONFIG_STANDARD;
	config *config = NULL;
	char *problem = NULL;
	size_t count = 0;

	if (!config_read(path, &config, &problem)) {
		int failed = cli_fail(invocation, CLI_USAGE, "write one, or say where it is with --config FILE", "%s", problem);
		free(problem);
		return failed;
	}
	job *jobs = cli_allocate((config_section_count(config) + 1) * sizeof *jobs);
	int result = choose(invocation, config, kind, jobs, &count);
	if (result == CLI_OK) {
		warn_of_secrets(config, kind);
		result = check_all(invocation, jobs, count);
	}
	if (result == CLI_OK && invocation->given[OPTION_CHECK_CONFIG]) {
		cli_note(invocation, "%s: %zu of its %s can be run", path, count, kind->plural);
	} else if (result == CLI_OK) {
		result = run_all(invocation, kind, jobs, count);
	}
	for (size_t i = 0; i < count; i++) {
		free(jobs[i].conninfo);
		free(jobs[i].problem);
	}
	free(jobs);
	config_free(config);
	return result;
}
