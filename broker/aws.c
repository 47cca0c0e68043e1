/* SPDX-License-Identifier: PostgreSQL */
/* aws.c: see aws.h. Calls are sent by runtime/http_client.c; here they are signed and their answers
 * judged. */
#include "aws.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "aws_credentials.h"
#include "aws_profile.h"
#include "aws_sign.h"
#include "memory.h"

enum {
	CONNECT_MS = 5000,
	ERRAND_MS = 5000, /* the caller does nothing else meanwhile */
	SKEW_S_MAX = 60,  /* AWS allows five minutes (SQS, SNS: fifteen) */
	TRIES_MAX = 3
};
/* Ten messages of a megabyte, which JSON may expand sixfold. */
#define ANSWER_BYTES_MAX ((int64_t)64 << 20)

/* ---- the address */

static const char *from_environment(const char *name)
{
	const char *value = getenv(name);

	return value != NULL && value[0] != '\0' ? value : NULL;
}

static char *region_of(const aws_options *options, const char *profile)
{
	const char *given = options->region != NULL ? options->region : from_environment("AWS_REGION");

	given = given != NULL ? given : from_environment("AWS_DEFAULT_REGION");
	if (given != NULL) {
		return memory_copy(given);
	}
	char *path = aws_shared_path("AWS_CONFIG_FILE", "config");
	char *found = path == NULL ? NULL : aws_profile_entry(path, true, profile, "region");
	free(path);
	return found;
}

/* It becomes part of a host name. */
static bool is_region(const char *region)
{
	return region[0] != '\0' && strlen(region) < 64 &&
	       strspn(region, "abcdefghijklmnopqrstuvwxyz0123456789-") == strlen(region);
}

/* "https://HOST[:PORT]", perhaps with a slash. */
static bool url_read(const char *url, aws_address *address)
{
	const http_settings settings = {.allow_plain = true};
	const char *host = strstr(url, "://");

	if (host == NULL || http_check_url(&settings, url)[0] != '\0') {
		return false;
	}
	host += 3;
	size_t length = strcspn(host, "/?#");
	if (length == 0 || memchr(host, '@', length) != NULL || (host[length] != '\0' && strcmp(host + length, "/") != 0)) {
		return false;
	}
	address->url = memory_format("%.*s/", (int)(host - url + (ptrdiff_t)length), url);
	address->host = memory_format("%.*s", (int)length, host);
	return true;
}

bool aws_address_read(const config *config, const config_section *section, const aws_options *options,
                      const char *service_name, aws_address **result, char **problem)
{
	aws_address *address = memory_take(sizeof *address);
	const char *profile = options->profile != NULL ? options->profile : from_environment("AWS_PROFILE");

	*problem = NULL;
	address->profile = memory_copy(profile != NULL ? profile : "default");
	address->profile_given = options->profile != NULL;
	address->ca_file = memory_copy(options->ca_file);
	address->region = region_of(options, address->profile);
	if (address->region == NULL) {
		*problem = config_problem(config, section, NULL,
		                          "option region is missing, and neither AWS_REGION nor ~/.aws/config has it");
	} else if (!is_region(address->region)) {
		*problem = config_problem(config, section, config_entry_of(section, "region"),
		                          "'%s' is not a region: write it like eu-central-1", address->region);
	} else if (options->ca_file != NULL && access(options->ca_file, R_OK) != 0) {
		*problem = config_problem(config, section, config_entry_of(section, "ca_file"), "cannot read %s: %s",
		                          options->ca_file, strerror(errno));
	} else {
		const char *end = strncmp(address->region, "cn-", 3) == 0 ? ".cn" : "";
		char *standard = memory_format("https://%s.%s.amazonaws.com%s", service_name, address->region, end);
		if (!url_read(options->url != NULL ? options->url : standard, address)) {
			*problem = config_problem(config, section, config_entry_of(section, "url"),
			                          "'%s' is not an endpoint: write https://HOST or https://HOST:PORT", options->url);
		}
		free(standard);
	}
	if (*problem != NULL) {
		aws_address_free(address);
		return false;
	}
	*result = address;
	return true;
}

void aws_address_free(aws_address *address)
{
	if (address != NULL) {
		free(address->url);
		free(address->host);
		free(address->region);
		free(address->profile);
		free(address->ca_file);
		free(address);
	}
}

/* ---- the client */

struct aws_client {
	const speaker *speaker;
	const aws_address *address;
	const char *name; /* "sqs" */
	aws_keychain *keychain;
	http_client *http;
	http_client *errands; /* for aws_do */
	aws_call *failed;     /* calls that failed before they were sent */
	int64_t ahead_s;      /* the server's clock minus this machine's, in seconds */
};

static http_client *open_http(const aws_address *address, int64_t calls_max, int64_t timeout_ms)
{
	return http_client_new(&(http_settings){.timeout_ms = timeout_ms,
	                                        .connect_timeout_ms = timeout_ms < CONNECT_MS ? timeout_ms : CONNECT_MS,
	                                        .calls_max = calls_max,
	                                        .response_bytes_max = ANSWER_BYTES_MAX,
	                                        .allow_private = true,
	                                        .allow_plain = true,
	                                        .proxy_of_environment = true,
	                                        .ca_file = address->ca_file});
}

aws_client *aws_client_new(const speaker *speaker, const aws_address *address, const char *service_name,
                           int64_t calls_max, int64_t timeout_ms)
{
	aws_client *client = memory_take(sizeof *client);

	client->speaker = speaker;
	client->address = address;
	client->name = service_name;
	client->keychain = aws_keychain_new(speaker, address);
	client->http = open_http(address, calls_max, timeout_ms);
	client->errands = open_http(address, 1, timeout_ms < ERRAND_MS ? timeout_ms : ERRAND_MS);
	if (client->http == NULL || client->errands == NULL) {
		aws_client_free(client);
		return NULL;
	}
	return client;
}

void aws_client_free(aws_client *client)
{
	if (client != NULL) {
		http_client_free(client->http);
		http_client_free(client->errands);
		aws_keychain_free(client->keychain);
		free(client);
	}
}

void aws_permit(aws_client *client, int64_t until_ms)
{
	http_permit(client->http, until_ms);
}

void aws_watch(aws_client *client, int descriptor)
{
	http_watch(client->http, descriptor);
}

void aws_call_again(aws_call *call)
{
	http_call_clear(&call->http);
	call->answer = "";
	call->answer_length = 0;
	call->tries = 0;
}

void aws_call_clear(aws_call *call)
{
	http_call_clear(&call->http);
	free(call->body);
	free(call->token);
	call->body = call->token = NULL;
	call->answer = "";
	call->answer_length = 0;
}

/* ---- sending */

static bool fill(aws_client *client, aws_call *call, const aws_credentials *credentials)
{
	size_t count = 0;
	const once_bytes body = {.data = call->body, .length = call->body_length};

	call->signed_at_s = (int64_t)time(NULL) + client->ahead_s;
	aws_date(call->signed_at_s, call->date);
	free(call->token);
	call->token = memory_copy(credentials->token);
	call->headers[count++] = (http_header){"Host", client->address->host};
	call->headers[count++] = (http_header){"Content-Type", call->target != NULL ? "application/x-amz-json-1.0"
	                                                                            : "application/x-www-form-urlencoded"};
	call->headers[count++] = (http_header){"X-Amz-Date", call->date};
	if (call->target != NULL) {
		call->headers[count++] = (http_header){"X-Amz-Target", call->target};
	}
	if (call->token != NULL) {
		call->headers[count++] = (http_header){"X-Amz-Security-Token", call->token};
	}
	const aws_signing signing = {.method = "POST",
	                             .path = "/",
	                             .query = "",
	                             .headers = call->headers,
	                             .header_count = count,
	                             .body = body,
	                             .date = call->date,
	                             .region = client->address->region,
	                             .service = client->name,
	                             .access_key = credentials->access_key,
	                             .secret_key = credentials->secret_key};
	if (!aws_sign(&signing, call->authorization)) {
		return false;
	}
	call->headers[count++] = (http_header){"Authorization", call->authorization};
	call->http = (http_call){
	    .url = client->address->url, .headers = call->headers, .header_count = count, .body = body, .user = call};
	return true;
}

/* True: it is sent. False: it has failed, and says why; or *full. */
static bool send_signed(aws_client *client, http_client *http, aws_call *call, bool *full)
{
	*full = false;
	call->answer = "";
	call->answer_length = 0;
	call->code[0] = call->problem[0] = '\0';
	call->result = AWS_AWAY;
	const aws_credentials *credentials = aws_keychain_get(client->keychain, call->problem);
	if (credentials == NULL) {
		return false;
	}
	if (!fill(client, call, credentials)) {
		snprintf(call->problem, sizeof call->problem,
		         "the call cannot be signed: the credentials from the %s are too long", credentials->from);
		return false;
	}
	*full = !http_start(http, &call->http);
	call->tries += *full ? 0 : 1;
	return !*full;
}

bool aws_start(aws_client *client, aws_call *call)
{
	bool full;

	if (!send_signed(client, client->http, call, &full) && !full) {
		call->next = client->failed;
		client->failed = call;
	}
	return !full;
}

/* ---- answers */

static bool is_one_of(const char *code, const char *const *codes)
{
	for (; *codes != NULL; codes++) {
		if (strcmp(code, *codes) == 0) {
			return true;
		}
	}
	return false;
}

static bool is_busy(const aws_call *call)
{
	static const char *const codes[] = {"RequestLimitExceeded",    "SlowDown",       "BandwidthLimitExceeded",
	                                    "PriorRequestNotComplete", "RequestTimeout", NULL};

	return call->http.status >= 500 || call->http.status == 429 || call->http.status == 408 ||
	       aws_is_throttled(call->code) || is_one_of(call->code, codes);
}

/* If the service rejects our clock, the next call is signed with its time. */
static bool learn_clock(aws_client *client, const aws_call *call)
{
	static const char *const codes[] = {"RequestTimeTooSkewed",      "RequestExpired",        "RequestInTheFuture",
	                                    "InvalidSignatureException", "SignatureDoesNotMatch", NULL};
	int64_t off_s = call->http.date_s - call->signed_at_s;

	if (!is_one_of(call->code, codes) || call->http.date_s == 0 || (off_s < SKEW_S_MAX && off_s > -SKEW_S_MAX)) {
		return false;
	}
	client->ahead_s = call->http.date_s - (int64_t)time(NULL);
	runtime_log(
	    client->speaker, RUNTIME_WARNING, "clock",
	    "ahead_s=%lld hint=\"the clock of %s is this far ahead of this machine's; calls are signed with its time\"",
	    (long long)client->ahead_s, client->address->host);
	return true;
}

static bool is_about_credentials(const aws_call *call)
{
	static const char *const codes[] = {"ExpiredToken",
	                                    "ExpiredTokenException",
	                                    "InvalidClientTokenId",
	                                    "UnrecognizedClientException",
	                                    "InvalidAccessKeyId",
	                                    "InvalidSecurity",
	                                    "InvalidSignatureException",
	                                    "SignatureDoesNotMatch",
	                                    "AuthFailure",
	                                    "MissingAuthenticationToken",
	                                    "IncompleteSignature",
	                                    NULL};

	return is_one_of(call->code, codes);
}

/* True: it must be sent once more. */
static bool judge(aws_client *client, aws_call *call)
{
	const http_call *http = &call->http;

	if (http->result != HTTP_ANSWERED) {
		call->result = http->result == HTTP_WITHHELD ? AWS_WITHHELD : AWS_AWAY;
		snprintf(call->problem, sizeof call->problem, "%s%.60s: %.150s",
		         http->result == HTTP_UNKNOWN ? "no answer from " : "cannot reach ", client->address->url,
		         http->problem);
		return false;
	}
	if (http->status >= 200 && http->status <= 299) {
		call->result = AWS_DONE;
		call->answer = http->response_body == NULL ? "" : http->response_body;
		call->answer_length = http->response_length;
		return false;
	}
	aws_error_read(
	    (once_bytes){.data = http->response_body, .length = http->response_body == NULL ? 0 : http->response_length},
	    http->status, call->code, call->problem);
	if (is_busy(call)) {
		call->result = AWS_BUSY;
		return false;
	}
	bool again = learn_clock(client, call);
	if (!again && is_about_credentials(call)) {
		call->result = AWS_AWAY;
		again = aws_keychain_renew(client->keychain);
	} else {
		call->result = AWS_REFUSED;
	}
	return again && call->tries < TRIES_MAX;
}

static bool send_again(aws_client *client, http_client *http, aws_call *call)
{
	bool full;

	http_call_clear(&call->http);
	return send_signed(client, http, call, &full);
}

aws_call *aws_poll(aws_client *client, int timeout_ms)
{
	aws_call *call = client->failed;

	if (call != NULL) {
		client->failed = call->next;
		return call;
	}
	for (http_call *http; (http = http_poll(client->http, timeout_ms)) != NULL;) {
		call = http->user;
		if (!judge(client, call) || !send_again(client, client->http, call)) {
			return call;
		}
	}
	return NULL;
}

void aws_do(aws_client *client, aws_call *call)
{
	bool full;
	bool goes = send_signed(client, client->errands, call, &full);

	while (goes) {
		while (http_poll(client->errands, 1000) == NULL) {
			/* It has its own timeout. */
		}
		goes = judge(client, call) && send_again(client, client->errands, call);
	}
}
