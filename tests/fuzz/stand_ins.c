/* SPDX-License-Identifier: PostgreSQL */
/*
 * stand_ins.c: what fingerprint.c would ask a server with. No fuzz target has one, so nothing here
 * is ever called.
 */
#include <stdlib.h>

#include "internal.h"

void call_start(call *call, enum sql_id id)
{
	(void)call;
	(void)id;
	abort();
}

void call_add_text(call *call, const char *text)
{
	(void)call;
	(void)text;
	abort();
}

once_code call_run(once_session *session, call *call, PGresult **result, once_error **error)
{
	(void)session;
	(void)call;
	(void)result;
	(void)error;
	abort();
}
