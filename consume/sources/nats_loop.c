/* SPDX-License-Identifier: PostgreSQL */
/* nats_loop.c: see nats_loop.h. */
#include "nats_loop.h"

#include <stdio.h>
#include <string.h>

enum {
	ANSWER_MS = 2000
};

bool nats_subject_takes(const char *pattern, const char *subject)
{
	while (*subject != '\0') {
		size_t asked = strcspn(pattern, "."), given = strcspn(subject, ".");
		if (asked == 1 && *pattern == '>') {
			return true;
		}
		if (!(asked == 1 && *pattern == '*') && (asked != given || memcmp(pattern, subject, given) != 0)) {
			return false;
		}
		pattern += asked;
		subject += given;
		if ((*pattern == '.') != (*subject == '.')) {
			return false;
		}
		pattern += *pattern == '.';
		subject += *subject == '.';
	}
	return *pattern == '\0';
}

/* True: messages that the named stream takes are copied to ours. */
static bool copies_from(const jsStreamSource *from, const char *stream, const char *dead_topic)
{
	const char *filter = from->FilterSubject;

	/* A stream of another account or domain has different names. */
	return from->External == NULL && strcmp(from->Name, stream) == 0 &&
	       (filter == NULL || filter[0] == '\0' || nats_subject_takes(filter, dead_topic));
}

/* Finds a loop through the stream that takes the copy, if ours mirrors it or sources from it. */
static nats_loop find_by_source(jsCtx *js, const jsStreamConfig *config, const char *dead_topic,
                                char problem[BROKER_PROBLEM_BYTES])
{
	jsStreamNamesList *names = NULL;
	nats_loop found = NATS_LOOP_NO;
	jsOptions how;

	if (config->Mirror == NULL && config->SourcesLen == 0) {
		return NATS_LOOP_NO;
	}
	jsOptions_Init(&how);
	how.Wait = ANSWER_MS;
	how.Stream.Info.SubjectsFilter = dead_topic;
	natsStatus status = js_StreamNames(&names, js, &how, NULL);
	if (status == NATS_NOT_FOUND) {
		return NATS_LOOP_NO; /* no stream takes it */
	}
	if (status != NATS_OK) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "cannot ask which stream takes %.100s: %s", dead_topic,
		         natsStatus_GetText(status));
		return NATS_LOOP_UNKNOWN;
	}
	for (int i = 0; i < names->Count && found == NATS_LOOP_NO; i++) {
		bool comes = config->Mirror != NULL && copies_from(config->Mirror, names->List[i], dead_topic);
		for (int j = 0; j < config->SourcesLen && !comes; j++) {
			comes = copies_from(config->Sources[j], names->List[i], dead_topic);
		}
		if (comes) {
			snprintf(problem, BROKER_PROBLEM_BYTES,
			         "dead_topic: stream %.50s copies all of stream %.50s, including %.60s: each copy would die again",
			         config->Name, names->List[i], dead_topic);
			found = NATS_LOOP_YES;
		}
	}
	jsStreamNamesList_Destroy(names);
	return found;
}

nats_loop nats_loop_find(jsCtx *js, const char *stream, const char *filter, const char *dead_topic,
                         char problem[BROKER_PROBLEM_BYTES])
{
	jsStreamInfo *info = NULL;
	nats_loop found = NATS_LOOP_NO;
	jsOptions how;

	if (filter != NULL && !nats_subject_takes(filter, dead_topic)) {
		return NATS_LOOP_NO;
	}
	jsOptions_Init(&how);
	how.Wait = ANSWER_MS;
	natsStatus status = js_GetStreamInfo(&info, js, stream, &how, NULL);
	if (status != NATS_OK) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "cannot ask which subjects stream %.60s takes: %s", stream,
		         natsStatus_GetText(status));
		return NATS_LOOP_UNKNOWN;
	}
	for (int i = 0; i < info->Config->SubjectsLen && found == NATS_LOOP_NO; i++) {
		if (nats_subject_takes(info->Config->Subjects[i], dead_topic)) {
			snprintf(problem, BROKER_PROBLEM_BYTES,
			         "dead_topic: stream %.60s, which is read, takes %.80s itself: each copy would die again; name a "
			         "subject of another stream",
			         stream, dead_topic);
			found = NATS_LOOP_YES;
		}
	}
	if (found == NATS_LOOP_NO) {
		found = find_by_source(js, info->Config, dead_topic, problem);
	}
	jsStreamInfo_Destroy(info);
	return found;
}
