/* SPDX-License-Identifier: PostgreSQL */
/* sqs_errands.c: see sqs_errands.h. */
#include "sqs_errands.h"

#include <stdlib.h>

#include "memory.h"
#include "sqs_message.h"

enum {
	FAILURES_MAX = 5
};

static void add(errands *errands, errand *errand)
{
	errand->previous = NULL;
	errand->next = errands->first;
	if (errands->first != NULL) {
		errands->first->previous = errand;
	}
	errands->first = errand;
	errands->counts[errand->kind]++;
	errands->asked += errand->asked;
}

static void take_off(errands *errands, errand *errand)
{
	*(errand->previous == NULL ? &errands->first : &errand->previous->next) = errand->next;
	if (errand->next != NULL) {
		errand->next->previous = errand->previous;
	}
	errands->counts[errand->kind]--;
	errands->asked -= errand->asked;
}

static void end(errand *errand)
{
	for (size_t i = 0; errand->kind == ERRAND_DELETE && i < errand->count; i++) {
		sqs_message_release(errand->gone[i]);
	}
	aws_call_clear(&errand->call);
	free(errand);
}

errand *errand_new(errands *errands, errand_kind kind)
{
	errand *made = memory_take(sizeof *made);

	made->kind = kind;
	made->call.user = made;
	made->call.answer = "";
	made->started_ms = runtime_now_ms();
	add(errands, made);
	return made;
}

void errand_ask(errands *errands, errand *errand, size_t most)
{
	errands->asked += most;
	errand->asked = most;
}

bool errand_send(errands *errands, errand *errand, const char *target, json_t *request)
{
	if (sqs_call(&errand->call, target, request) && aws_start(errands->client, &errand->call)) {
		return true;
	}
	errand_free(errands, errand);
	return false;
}

void errand_free(errands *errands, errand *errand)
{
	take_off(errands, errand);
	end(errand);
}

size_t errands_count(const errands *errands)
{
	size_t count = 0;

	for (size_t kind = 0; kind < ERRAND_KINDS; kind++) {
		count += errands->counts[kind];
	}
	return count;
}

bool errands_keep_lost(errands *errands, errand *errand)
{
	errand->failures += errand->call.result == AWS_BUSY;
	if ((errand->call.result != AWS_AWAY && errand->call.result != AWS_BUSY) || errand->failures >= FAILURES_MAX) {
		return false;
	}
	take_off(errands, errand);
	errand->next = errands->lost;
	errands->lost = errand;
	return true;
}

bool errands_make_again(errands *errands, size_t most, int64_t known_ms)
{
	bool goes = true;

	while (goes && errands->lost != NULL && errands->counts[ERRAND_RECEIVE] < most) {
		errand *errand = errands->lost;
		errands->lost = errand->next;
		if (runtime_now_ms() - errand->started_ms >= known_ms) {
			end(errand);
			continue;
		}
		add(errands, errand);
		errand->is_again = true;
		aws_call_again(&errand->call);
		goes = aws_start(errands->client, &errand->call);
		if (!goes) {
			errand_free(errands, errand);
		}
	}
	return goes;
}

void errands_clear(errands *errands)
{
	errand *const lists[] = {errands->first, errands->lost};

	aws_client_free(errands->client);
	for (size_t i = 0; i < 2; i++) {
		for (errand *next = NULL, *each = lists[i]; each != NULL; each = next) {
			next = each->next;
			end(each);
		}
	}
	*errands = (struct errands){0};
}
