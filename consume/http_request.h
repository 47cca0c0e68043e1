/* SPDX-License-Identifier: PostgreSQL */
/* http_request.h: a message as an HTTP request, and the meaning of its answer. */
#pragma once

#include "database.h"
#include "http_client.h"
#include "message.h"

typedef enum answer_kind {
	ANSWER_APPLIED, /* 2xx */
	ANSWER_FAILED,  /* the message's or the endpoint's fault: counts as an attempt */
	ANSWER_LATER,   /* 429, 503: HTTP defines both as "not now"; does not count */
	ANSWER_UNSENT   /* it did not arrive: the endpoint is away, or may not be called */
} answer_kind;

/* Fills the fields that the caller of http_start fills; all in the arena. */
void http_request_make(const message *message, const char *url, arena *arena, http_call *call);
/* The answer's meaning; *failure describes it unless ANSWER_APPLIED. */
answer_kind http_request_result(const http_call *call, failure *failure);
/* What is stored of an answer or a missing answer; strings belong to the call or the arena. */
once_outcome http_request_outcome(const http_call *call, const failure *failure, arena *arena);
