/* SPDX-License-Identifier: PostgreSQL */
/*
 * play_consumer.c: the consumers of a configuration file with the scripted source: play_consumer
 * FILE NAME DSN [once] [verbose].
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "consume.h"

int main(int argc, char **argv)
{
	config *config = NULL;
	char *problem = NULL;
	bool once = false;

	for (int i = 4; i < argc; i++) {
		once = once || strcmp(argv[i], "once") == 0;
		if (strcmp(argv[i], "verbose") == 0) {
			runtime_log_level(RUNTIME_DEBUG);
		}
	}
	if (argc < 4 || !runtime_stop_install() || !config_read(argv[1], &config, &problem)) {
		fprintf(stderr, "play_consumer: %s\n", problem == NULL ? "usage" : problem);
		return 2;
	}
	const config_section *section = config_find(config, "consume", argv[2]);
	if (section == NULL || !consume_check(config, section, &problem)) {
		fprintf(stderr, "play_consumer: %s\n", problem == NULL ? "no such section" : problem);
		free(problem);
		config_free(config);
		return 2;
	}
	const consume_job job = {.config = config, .section = section, .conninfo = argv[3], .once = once};
	consume_result result = consume_run(&job, &problem);
	if (result != CONSUME_STOPPED) {
		fprintf(stderr, "play_consumer: %s\n", problem);
	}
	free(problem);
	config_free(config);
	return (int)result;
}
