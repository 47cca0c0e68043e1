/* SPDX-License-Identifier: PostgreSQL */
/* stream.c: see warehouse.h: the stream in NATS. Left out where libnats is not there. */
#include "warehouse.h"

#include <nats/nats.h>

static natsStatus add_stream(natsConnection *connection)
{
	const char *subjects[] = {"order.>"};
	jsCtx *js = NULL;
	jsStreamConfig config;
	jsErrCode code = 0;
	natsStatus status = natsConnection_JetStream(&js, connection, NULL);

	if (status == NATS_OK) {
		jsStreamConfig_Init(&config);
		config.Name = WAREHOUSE_STREAM;
		config.Subjects = subjects;
		config.SubjectsLen = 1;
		status = js_AddStream(NULL, js, &config, NULL, &code);
	}
	jsCtx_Destroy(js);
	return code == JSStreamNameExistErr ? NATS_OK : status;
}

int warehouse_make_stream(const server *server, const char *url)
{
	natsConnection *connection = NULL;
	natsStatus status = natsConnection_ConnectTo(&connection, url);

	if (status == NATS_OK) {
		status = add_stream(connection);
	}
	natsConnection_Destroy(connection);
	/* Its threads end here: what is started next is started by fork(), of a process that must have but one. */
	nats_CloseAndWait(0);
	return status == NATS_OK ? CLI_OK
	                         : cli_fail(server->invocation, CLI_FAILED, NULL,
	                                    "cannot make the stream in NATS at %s: %s", url, natsStatus_GetText(status));
}
