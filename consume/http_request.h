/* SPDX-License-Identifier: PostgreSQL */
/* http_request.h: a message as an HTTP request, and what its answer means. */
#pragma once

#include "database.h"
#include "http_client.h"
#include "message.h"

typedef enum answer_kind {
	ANSWER_APPLIED, /* 2xx */
	ANSWER_FAILED,  /* the message's or the endpoint's fault: counts as an attempt */
	ANSWER_LATER,   /* 429, 503: not now, by HTTP's own words; counts for nothing */
	ANSWER_UNSENT   /* it did not arrive: the endpoint is away, or may not be called */
} answer_kind;

/* Fills what the caller of http_start fills; all in the arena. */
void http_request_make(const message *message, const char *url, arena *arena, http_call *call);
/* What it means; *failure says it where it is not ANSWER_APPLIED. */
answer_kind http_request_result(const http_call *call, failure *failure);
/* What is stored of an answer, or of the lack of one; strings are the call's or in the arena. */
once_outcome http_request_outcome(const http_call *call, const failure *failure, arena *arena);
