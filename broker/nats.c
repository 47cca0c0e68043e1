/* SPDX-License-Identifier: PostgreSQL */
/* nats.c: see nats.h. */
#include "nats.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PING_MS 5000
#define PINGS_OUT_MAX 2
#define WRITE_MS 2000

static const broker_scheme scheme = {.plain = "nats", .tls = "tls", .plain_port = 4222, .tls_port = 4222};

bool nats_address_read(const config *config, const config_section *section, const nats_options *options,
                       broker_address **result, char **problem)
{
	if (!broker_address_read(config, section, &options->broker, &scheme, result, problem)) {
		return false;
	}
	broker_address *address = *result;
	if (options->credentials_file != NULL && (address->user != NULL || address->password != NULL)) {
		*problem = config_problem(config, section, NULL, "credentials_file and a user or a password: give one of them");
	} else if (options->credentials_file != NULL && access(options->credentials_file, R_OK) != 0) {
		*problem = config_problem(config, section, NULL, "credentials_file: cannot read %s: %s",
		                          options->credentials_file, strerror(errno));
	} else {
		return true;
	}
	broker_address_free(address);
	*result = NULL;
	return false;
}

static natsStatus set_servers(natsOptions *options, const broker_address *address)
{
	char **urls = calloc(address->host_count, sizeof *urls);
	natsStatus status = urls == NULL ? NATS_NO_MEMORY : NATS_OK;

	for (size_t i = 0; status == NATS_OK && i < address->host_count; i++) {
		broker_address one = {.hosts = &address->hosts[i], .host_count = 1};
		urls[i] = broker_address_hosts(&one, address->tls ? "tls://" : "nats://");
		status = urls[i] == NULL ? NATS_NO_MEMORY : NATS_OK;
	}
	if (status == NATS_OK) {
		status = natsOptions_SetServers(options, (const char **)urls, (int)address->host_count);
	}
	for (size_t i = 0; urls != NULL && i < address->host_count; i++) {
		free(urls[i]);
	}
	free(urls);
	return status;
}

static natsStatus set_login(natsOptions *options, const broker_address *address, const char *credentials_file)
{
	if (credentials_file != NULL) {
		return natsOptions_SetUserCredentialsFromFiles(options, credentials_file, NULL);
	}
	if (address->user != NULL && address->password == NULL) {
		/* nats://token@host, NATS's form of a token */
		return natsOptions_SetToken(options, address->user);
	}
	if (address->user != NULL) {
		return natsOptions_SetUserInfo(options, address->user, address->password);
	}
	return address->password == NULL ? NATS_OK : natsOptions_SetToken(options, address->password);
}

static natsStatus set_tls(natsOptions *options, const broker_address *address)
{
	natsStatus status = address->tls ? natsOptions_SetSecure(options, true) : NATS_OK;

	if (status == NATS_OK && address->ca_file != NULL) {
		status = natsOptions_LoadCATrustedCertificates(options, address->ca_file);
	}
	if (status == NATS_OK && address->certificate_file != NULL) {
		status = natsOptions_LoadCertificatesChain(options, address->certificate_file, address->key_file);
	}
	return status;
}

bool nats_prepare(const broker_address *address, const char *credentials_file, const char *name, int connect_timeout_ms,
                  natsOptions **result, char problem[BROKER_PROBLEM_BYTES])
{
	natsOptions *options = NULL;
	natsStatus status = natsOptions_Create(&options);

	status = status == NATS_OK ? set_servers(options, address) : status;
	status = status == NATS_OK ? set_login(options, address, credentials_file) : status;
	status = status == NATS_OK ? set_tls(options, address) : status;
	status = status == NATS_OK ? natsOptions_SetName(options, name) : status;
	status = status == NATS_OK ? natsOptions_SetTimeout(options, connect_timeout_ms) : status;
	status = status == NATS_OK ? natsOptions_SetPingInterval(options, PING_MS) : status;
	status = status == NATS_OK ? natsOptions_SetMaxPingsOut(options, PINGS_OUT_MAX) : status;
	status = status == NATS_OK ? natsOptions_SetWriteDeadline(options, WRITE_MS) : status;
	status = status == NATS_OK ? natsOptions_SetAllowReconnect(options, false) : status;
	if (status == NATS_OK) {
		*result = options;
		return true;
	}
	nats_problem(address, "cannot prepare a connection to", status, NULL, problem);
	natsOptions_Destroy(options);
	return false;
}

void nats_problem(const broker_address *address, const char *what, natsStatus status, natsConnection *connection,
                  char problem[BROKER_PROBLEM_BYTES])
{
	const char *more = NULL;
	natsStatus last = NATS_OK;

	if (connection != NULL) {
		(void)natsConnection_GetLastError(connection, &more);
	} else {
		more = nats_GetLastError(&last);
	}
	/* "(conn.c:2088): No server ...": users do not need the place in cnats. */
	const char *place_ends = more != NULL && *more == '(' ? strstr(more, "): ") : NULL;
	more = place_ends == NULL ? more : place_ends + strlen("): ");
	bool has_more = more != NULL && *more != '\0' && strcmp(more, natsStatus_GetText(status)) != 0;
	snprintf(problem, BROKER_PROBLEM_BYTES, "%s %s: %s%s%s", what, address->shown, natsStatus_GetText(status),
	         has_more ? ": " : "", has_more ? more : "");
}

bool nats_answer_error(const char *data, size_t length, int *code, char problem[BROKER_PROBLEM_BYTES])
{
	json_t *answer = json_loadb(data, length, 0, NULL);
	const char *text = NULL;
	int specific = 0;
	bool wrong = true;

	*code = 0;
	if (answer == NULL || !json_is_object(answer)) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "the server there is not JetStream: %.*s",
		         (int)(length < 60 ? length : 60), data);
	} else if (json_object_get(answer, "error") == NULL) {
		/* Another program on that port may answer with its own JSON. */
		wrong = !json_is_string(json_object_get(answer, "stream")) ||
		        json_integer_value(json_object_get(answer, "seq")) <= 0;
		snprintf(problem, BROKER_PROBLEM_BYTES,
		         "the server there is not JetStream: its answer has no stream and sequence");
	} else if (json_unpack(answer, "{s:{s?i,s?i,s?s}}", "error", "code", code, "err_code", &specific, "description",
	                       &text) == 0) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "%s (JetStream error %d, %d)", text == NULL ? "refused" : text, *code,
		         specific);
	} else {
		snprintf(problem, BROKER_PROBLEM_BYTES, "refused: %.*s", (int)(length < 200 ? length : 200), data);
	}
	json_decref(answer);
	return wrong;
}

#define STORE_FAILED 10077 /* a full stream has it too, so the texts below decide */

bool nats_answer_is_absence(const char *data, size_t length)
{
	static const int absences[] = {
	    10008, /* JetStream system temporarily unavailable */
	    10023, /* insufficient resources: the server's storage or memory is used up */
	    10039, /* JetStream not enabled for account */
	    10076  /* JetStream not enabled */
	};
	/* Go's texts of the system's errors for the stream's files. */
	static const char *const of_files[] = {
	    "no such file or directory", "no space left on device", "disk quota exceeded", "input/output error",
	    "permission denied",         "read-only file system",   "too many open files", "store is closed"};
	json_t *answer = json_loadb(data, length, 0, NULL);
	const json_t *error = json_object_get(answer, "error");
	json_int_t code = json_integer_value(json_object_get(error, "err_code"));
	const char *text = json_string_value(json_object_get(error, "description"));
	bool is_absence = false;

	for (size_t i = 0; i < sizeof absences / sizeof *absences; i++) {
		is_absence = is_absence || code == absences[i];
	}
	for (size_t i = 0; code == STORE_FAILED && text != NULL && i < sizeof of_files / sizeof *of_files; i++) {
		is_absence = is_absence || strstr(text, of_files[i]) != NULL;
	}
	json_decref(answer);
	return is_absence;
}

char *nats_ask_streams(const char *subject)
{
	json_t *request = json_pack("{s:s}", "subject", subject);
	char *text = request == NULL ? NULL : json_dumps(request, JSON_COMPACT);

	json_decref(request);
	return text;
}

bool nats_no_stream(const char *data, size_t length, char problem[BROKER_PROBLEM_BYTES])
{
	json_t *answer = json_loadb(data, length, 0, NULL);
	const json_t *total = json_object_get(answer, "total");
	const char *stream = json_string_value(json_array_get(json_object_get(answer, "streams"), 0));
	const char *error = json_string_value(json_object_get(json_object_get(answer, "error"), "description"));
	bool is_none = json_object_get(answer, "error") == NULL && json_is_integer(total) &&
	               json_integer_value(total) == 0 && stream == NULL;

	if (is_none) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "no stream takes this subject: create one, or change the route");
	} else if (stream != NULL) {
		snprintf(problem, BROKER_PROBLEM_BYTES,
		         "the stream %.100s accepts nothing now: it has no leader, or is offline", stream);
	} else {
		snprintf(problem, BROKER_PROBLEM_BYTES, "no stream answers for this subject, and JetStream says: %.150s",
		         error == NULL ? "no reason" : error);
	}
	json_decref(answer);
	return is_none;
}
