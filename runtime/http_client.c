/* SPDX-License-Identifier: PostgreSQL */
/*
 * http_client.c: see http_client.h. One easy handle per open call, kept for the next one;
 * connections live in the multi handle. `settle` alone decides what is certain about a failed call,
 * and never by the text of an error.
 */
#include "http_client.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "address.h"
#include "notify.h"
#include "runtime.h"

/*
 * The rest of a large body is read so that the connection can be used again, but only up to this
 * size.
 */
#define DROPPED_BYTES_MAX (1024 * 1024)
#define CONNECTION_SECONDS_MAX 300L

typedef struct slot slot;

struct slot {
	CURL *easy;
	http_client *client;
	http_call *call; /* NULL: the slot is free */
	struct curl_slist *headers;
	slot *next; /* in the list of free or of finished slots */
	size_t dropped_bytes;
	bool asked;      /* a connection existed and the request may be on its way */
	bool withheld;   /* the request may not be sent, or could not be while it was allowed */
	bool opened;     /* an allowed address was tried */
	bool overlong;   /* aborted here: the body does not end */
	bool head_ended; /* of the answer: an empty line came */
	bool no_memory;
	bool refused_address; /* this address was not allowed */
	char address[INET6_ADDRSTRLEN];
	char text[CURL_ERROR_SIZE];
};

struct http_client {
	http_settings settings;
	CURLM *multi;
	slot *slots;
	slot *free;
	slot *first_done, *last_done;
	size_t in_flight;
	int64_t permit_ms;
	int watched; /* a descriptor; -1: none */
};

/* ---- libcurl's callbacks */

static size_t on_body(char *data, size_t size, size_t count, void *user)
{
	slot *slot = user;
	http_call *call = slot->call;
	size_t length = size * count;
	size_t room = (size_t)slot->client->settings.response_bytes_max - call->response_length;
	size_t kept = length < room ? length : room;

	if (kept > 0) {
		char *grown = realloc(call->response_body, call->response_length + kept + 1);
		if (grown == NULL) {
			slot->no_memory = true;
			return 0;
		}
		memcpy(grown + call->response_length, data, kept);
		call->response_body = grown;
		call->response_length += kept;
		grown[call->response_length] = '\0';
	}
	slot->dropped_bytes += length - kept;
	slot->overlong = slot->dropped_bytes > DROPPED_BYTES_MAX;
	return slot->overlong ? 0 : length;
}

/* libcurl takes the end of a connection within the head for the end of the answer. */
/*
 * Seconds, or a date (RFC 9110, section 10.2.3), as milliseconds from now. -1: neither, or not in
 * the future. CURLINFO_RETRY_AFTER is not used: newer versions of libcurl limit it to six hours.
 */
static int64_t read_retry_after(const char *value)
{
	char *end = NULL;

	long long seconds = strtoll(value, &end, 10);
	if (end == value || *end != '\0') {
		time_t date = curl_getdate(value, NULL);
		seconds = date == -1 ? 0 : (long long)date - (long long)time(NULL);
	}
	if (seconds <= 0) {
		return -1;
	}
	return seconds < INT64_MAX / 1000 ? (int64_t)seconds * 1000 : INT64_MAX;
}

/* The value of a header line with this name ("Date:"), trimmed, in `line`; NULL: another header. */
static char *value_of(const char *name, const char *data, size_t length, char *line, size_t line_bytes)
{
	if (length <= strlen(name) || length >= line_bytes || strncasecmp(data, name, strlen(name)) != 0) {
		return NULL;
	}
	memcpy(line, data, length);
	line[length] = '\0';
	char *value = line + strlen(name);
	value += strspn(value, " \t");
	for (char *end = value + strlen(value); end > value && strchr(" \t\r\n", end[-1]) != NULL;) {
		*--end = '\0';
	}
	return value;
}

static size_t on_header(char *data, size_t size, size_t count, void *user)
{
	slot *slot = user;
	size_t length = size * count;
	char line[128];
	const char *value;

	if ((value = value_of("Retry-After:", data, length, line, sizeof line)) != NULL) {
		slot->call->retry_after_ms = read_retry_after(value);
	} else if ((value = value_of("Date:", data, length, line, sizeof line)) != NULL) {
		time_t date = curl_getdate(value, NULL);
		slot->call->date_s = date == -1 ? 0 : (int64_t)date;
	} else if (length > 5 && strncmp(data, "HTTP/", 5) == 0) {
		slot->call->retry_after_ms = -1; /* of an earlier, interim answer: 100, 103 */
		slot->call->date_s = 0;
	}
	slot->head_ended = length <= 2 && length > 0 && data[length - 1] == '\n';
	return length;
}

static curl_socket_t on_open_socket(void *user, curlsocktype purpose, struct curl_sockaddr *address)
{
	slot *slot = user;

	(void)purpose;
	if (!slot->client->settings.allow_private && !address_is_public(&address->addr, (socklen_t)address->addrlen)) {
		const void *bytes = address->family == AF_INET6
		                        ? (const void *)&((const struct sockaddr_in6 *)(const void *)&address->addr)->sin6_addr
		                        : (const void *)&((const struct sockaddr_in *)(const void *)&address->addr)->sin_addr;
		slot->refused_address = true;
		if (inet_ntop(address->family, bytes, slot->address, sizeof slot->address) == NULL) {
			slot->address[0] = '\0';
		}
		return CURL_SOCKET_BAD;
	}
	slot->opened = true;
	return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

/*
 * The connection, new or reused, is ready, and the request is about to be sent. If this is the
 * second time, libcurl lost a reused connection and would repeat the request on its own. Whether
 * the first one arrived is unknown, so libcurl must not decide that.
 */
static int on_request(void *user, char *remote, char *local, int remote_port, int local_port)
{
	slot *slot = user;
	bool again = slot->asked;

	(void)remote, (void)local, (void)remote_port, (void)local_port;
	slot->withheld = slot->withheld || runtime_now_ms() >= slot->client->permit_ms;
	if (slot->withheld) {
		return CURL_PREREQFUNC_ABORT;
	}
	slot->asked = true;
	return again ? CURL_PREREQFUNC_ABORT : CURL_PREREQFUNC_OK;
}

/* ---- creating a client */

static pthread_once_t started = PTHREAD_ONCE_INIT;
static bool curl_works = false;

static void start_curl(void)
{
	curl_works = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
}

/* Options of all calls. */
static bool prepare(slot *slot)
{
	const http_settings *settings = &slot->client->settings;
	CURL *easy = slot->easy = curl_easy_init();

	if (easy == NULL) {
		return false;
	}
	bool good = true;
#define SET(option, value) good = good && curl_easy_setopt(easy, option, value) == CURLE_OK
	SET(CURLOPT_PRIVATE, (void *)slot);
	SET(CURLOPT_ERRORBUFFER, slot->text);
	SET(CURLOPT_NOSIGNAL, 1L);
	/*
	 * Not HTTP/2: a server that closes such a connection properly (GOAWAY; nginx does every 1,000
	 * requests) refuses open requests, and only libcurl knows that they were not processed; here it
	 * looks like a lost connection.
	 */
	SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	SET(CURLOPT_FOLLOWLOCATION, 0L);
	/* A proxy from the environment would connect in our place, to an unchecked address. */
	if (!settings->proxy_of_environment) {
		SET(CURLOPT_PROXY, "");
	}
	/* A proxy's response before the server's is not an answer. */
	SET(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
	SET(CURLOPT_USERAGENT, "pgonce/" PGONCE_RELEASE);
	SET(CURLOPT_TIMEOUT_MS, (long)settings->timeout_ms);
	SET(CURLOPT_CONNECTTIMEOUT_MS, (long)settings->connect_timeout_ms);
	SET(CURLOPT_WRITEFUNCTION, on_body);
	SET(CURLOPT_WRITEDATA, (void *)slot);
	SET(CURLOPT_HEADERFUNCTION, on_header);
	SET(CURLOPT_HEADERDATA, (void *)slot);
	SET(CURLOPT_OPENSOCKETFUNCTION, on_open_socket);
	SET(CURLOPT_OPENSOCKETDATA, (void *)slot);
	SET(CURLOPT_PREREQFUNCTION, on_request);
	SET(CURLOPT_PREREQDATA, (void *)slot);
	/* so that a change of the host's address is noticed */
	SET(CURLOPT_MAXLIFETIME_CONN, CONNECTION_SECONDS_MAX);
	SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
	SET(CURLOPT_SSL_VERIFYPEER, 1L);
	SET(CURLOPT_SSL_VERIFYHOST, 2L);
	if (settings->ca_file != NULL) {
		SET(CURLOPT_CAINFO, settings->ca_file);
	}
	if (settings->certificate_file != NULL) {
		SET(CURLOPT_SSLCERT, settings->certificate_file);
	}
	if (settings->key_file != NULL) {
		SET(CURLOPT_SSLKEY, settings->key_file);
	}
#undef SET
	return good;
}

http_client *http_client_new(const http_settings *settings)
{
	pthread_once(&started, start_curl);
	http_client *client = curl_works ? calloc(1, sizeof *client) : NULL;

	if (client == NULL) {
		return NULL;
	}
	client->settings = *settings;
	client->permit_ms = INT64_MAX;
	client->watched = -1;
	client->slots = calloc((size_t)settings->calls_max, sizeof *client->slots);
	client->multi = curl_multi_init();
	bool good = client->slots != NULL && client->multi != NULL &&
	            curl_multi_setopt(client->multi, CURLMOPT_MAXCONNECTS, (long)settings->calls_max) == CURLM_OK;
	for (int64_t i = 0; good && i < settings->calls_max; i++) {
		client->slots[i].client = client;
		client->slots[i].next = client->free;
		client->free = &client->slots[i];
	}
	if (!good) {
		http_client_free(client);
		return NULL;
	}
	return client;
}

static void release(slot *slot)
{
	curl_slist_free_all(slot->headers);
	slot->headers = NULL;
	slot->call->handle = NULL;
	slot->call = NULL;
	slot->next = slot->client->free;
	slot->client->free = slot;
	slot->client->in_flight--;
}

void http_client_free(http_client *client)
{
	if (client == NULL) {
		return;
	}
	for (int64_t i = 0; client->slots != NULL && i < client->settings.calls_max; i++) {
		slot *slot = &client->slots[i];
		if (slot->easy != NULL) {
			curl_multi_remove_handle(client->multi, slot->easy);
			curl_easy_cleanup(slot->easy);
		}
		if (slot->call != NULL) {
			http_call_clear(slot->call);
			release(slot);
		}
	}
	if (client->multi != NULL) {
		curl_multi_cleanup(client->multi);
	}
	free(client->slots);
	free(client);
}

/* ---- sending */

static void finish(slot *slot, http_result result)
{
	http_client *client = slot->client;

	slot->call->result = result;
	slot->next = NULL;
	if (client->last_done != NULL) {
		client->last_done->next = slot;
	} else {
		client->first_done = slot;
	}
	client->last_done = slot;
}

/* Only these two schemes, and no guess from the host's name. */
const char *http_check_url(const http_settings *settings, const char *url)
{
	const char *problem = "";
	char *scheme = NULL;
	CURLU *parsed = curl_url();

	if (parsed == NULL || curl_url_set(parsed, CURLUPART_URL, url, CURLU_NON_SUPPORT_SCHEME) != CURLUE_OK ||
	    curl_url_get(parsed, CURLUPART_SCHEME, &scheme, 0) != CURLUE_OK) {
		problem = "this is not a URL: write https://HOST/PATH";
	} else if (strcmp(scheme, "http") == 0 && !settings->allow_plain) {
		problem = "http:// is not allowed: use https://, or set allow_plain = yes";
	} else if (strcmp(scheme, "http") != 0 && strcmp(scheme, "https") != 0) {
		problem = "only https:// and http:// are supported";
	}
	curl_free(scheme);
	curl_url_cleanup(parsed);
	return problem;
}

static bool is_header(const http_header *header)
{
	static const char token[] = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

	if (header->name[0] == '\0' || strspn(header->name, token) != strlen(header->name)) {
		return false;
	}
	for (const char *at = header->value; *at != '\0'; at++) {
		if (((unsigned char)*at < ' ' && *at != '\t') || *at == 0x7f) {
			return false;
		}
	}
	return true;
}

static bool add_header(slot *slot, const char *line)
{
	struct curl_slist *longer = curl_slist_append(slot->headers, line);

	slot->headers = longer != NULL ? longer : slot->headers;
	return longer != NULL;
}

/* "" or the problem, perhaps in the call's own `problem`. */
static const char *set_headers(slot *slot)
{
	http_call *call = slot->call;
	bool typed = false;
	/* No waiting for "100 Continue": most endpoints do not support it. */
	bool good = add_header(slot, "Expect:");

	for (size_t i = 0; good && i < call->header_count; i++) {
		const http_header *header = &call->headers[i];
		char *line = NULL;
		if (!is_header(header)) {
			snprintf(call->problem, sizeof call->problem,
			         "header '%.64s' cannot be sent: a name is letters, digits and -, and a value is one line",
			         header->name);
			return call->problem;
		}
		typed = typed || strcasecmp(header->name, "Content-Type") == 0;
		/* libcurl's syntax for a header with an empty value. */
		good = asprintf(&line, header->value[0] == '\0' ? "%s;%s" : "%s: %s", header->name, header->value) >= 0 &&
		       add_header(slot, line);
		free(line);
	}
	good = good && (typed || add_header(slot, "Content-Type:")) &&
	       curl_easy_setopt(slot->easy, CURLOPT_HTTPHEADER, slot->headers) == CURLE_OK;
	return good ? "" : "out of memory";
}

static bool set_request(slot *slot)
{
	const once_bytes *body = &slot->call->body;
	const char *method = slot->call->method;
	bool is_get = method != NULL && strcmp(method, "GET") == 0;

	/* The handle may have served another call. */
	if (curl_easy_setopt(slot->easy, CURLOPT_CUSTOMREQUEST, is_get ? NULL : method) != CURLE_OK ||
	    curl_easy_setopt(slot->easy, CURLOPT_URL, slot->call->url) != CURLE_OK) {
		return false;
	}
	if (is_get) {
		return curl_easy_setopt(slot->easy, CURLOPT_HTTPGET, 1L) == CURLE_OK;
	}
	return curl_easy_setopt(slot->easy, CURLOPT_POST, 1L) == CURLE_OK &&
	       curl_easy_setopt(slot->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body->length) == CURLE_OK &&
	       curl_easy_setopt(slot->easy, CURLOPT_POSTFIELDS, body->length > 0 ? (const char *)body->data : "") ==
	           CURLE_OK;
}

bool http_start(http_client *client, http_call *call)
{
	slot *slot = client->free;

	if (slot == NULL || (slot->easy == NULL && !prepare(slot))) {
		return false;
	}
	client->free = slot->next;
	client->in_flight++;
	slot->call = call;
	slot->next = NULL;
	slot->dropped_bytes = 0;
	slot->withheld = slot->asked = slot->opened = slot->head_ended = slot->overlong = slot->no_memory =
	    slot->refused_address = false;
	slot->address[0] = slot->text[0] = '\0';
	call->handle = slot;
	call->result = HTTP_UNSENT;
	call->status = 0;
	call->retry_after_ms = -1;
	call->date_s = 0;
	call->response_body = call->content_type = NULL;
	call->response_length = 0;
	call->problem[0] = '\0';

	const char *problem = http_check_url(&client->settings, call->url);
	problem = problem[0] == '\0' ? set_headers(slot) : problem;
	if (problem[0] != '\0') {
		if (problem != call->problem) {
			snprintf(call->problem, sizeof call->problem, "%s", problem);
		}
		finish(slot, HTTP_FORBIDDEN);
	} else if (!set_request(slot) || curl_multi_add_handle(client->multi, slot->easy) != CURLM_OK) {
		release(slot);
		return false;
	}
	return true;
}

/* ---- results */

/* gcc's analyzer loses track of the call's memory: http_call_clear frees it. */
#ifndef __clang__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif
/*
 * False: the status is not one that HTTP defines (RFC 9110, section 15): libcurl takes a line like
 * "HTTP/2 1" for an answer.
 */
static bool keep_answer(slot *slot)
{
	http_call *call = slot->call;
	long status = 0;
	const char *type = NULL;

	curl_easy_getinfo(slot->easy, CURLINFO_RESPONSE_CODE, &status);
	if (status < 100 || status > 999) {
		return false;
	}
	call->status = (int)status;
	if (curl_easy_getinfo(slot->easy, CURLINFO_CONTENT_TYPE, &type) == CURLE_OK && type != NULL) {
		call->content_type = strdup(type);
	}
	return true;
}
#ifndef __clang__
#pragma GCC diagnostic pop
#endif

/* The transfer is over: decides what that means for the request. */
static void settle(slot *slot, CURLcode code)
{
	http_call *call = slot->call;

	if ((code == CURLE_OK || slot->overlong) && slot->head_ended && keep_answer(slot)) {
		finish(slot, HTTP_ANSWERED);
		return;
	}
	call->retry_after_ms = -1;
	if (!slot->asked && !slot->opened && slot->refused_address) {
		snprintf(call->problem, sizeof call->problem, "the address %s is not public; allow_private = yes allows it",
		         slot->address);
		finish(slot, HTTP_FORBIDDEN);
		return;
	}
	const char *text = slot->text[0] != '\0' ? slot->text : curl_easy_strerror(code);
	if (slot->no_memory) {
		text = "out of memory while reading the answer";
	} else if (code == CURLE_ABORTED_BY_CALLBACK || code == CURLE_OK) {
		text = code == CURLE_OK && slot->head_ended ? "the response is not a valid HTTP answer"
		                                            : "the connection broke before a whole answer came";
	}
	snprintf(call->problem, sizeof call->problem, "%s", text);
	/* It may quote the other side's text, and will be stored as text. */
	for (char *at = call->problem; *at != '\0'; at++) {
		*at = *at < ' ' || *at > '~' ? '?' : *at;
	}
	finish(slot, slot->asked ? HTTP_UNKNOWN : slot->withheld ? HTTP_WITHHELD : HTTP_UNSENT);
}

static void collect(http_client *client)
{
	CURLMsg *message = NULL;
	int left = 0;

	while ((message = curl_multi_info_read(client->multi, &left)) != NULL) {
		char *private = NULL;
		CURLcode code = message->data.result;
		if (message->msg != CURLMSG_DONE ||
		    curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &private) != CURLE_OK) {
			continue;
		}
		slot *slot = (struct slot *)(void *)private;
		curl_multi_remove_handle(client->multi, slot->easy);
		settle(slot, code);
	}
}

static http_call *take_done(http_client *client)
{
	slot *slot = client->first_done;

	if (slot == NULL) {
		return NULL;
	}
	client->first_done = slot->next;
	client->last_done = client->first_done == NULL ? NULL : client->last_done;
	http_call *call = slot->call;
	release(slot);
	return call;
}

http_call *http_poll(http_client *client, int timeout_ms)
{
	int64_t until = runtime_now_ms() + timeout_ms;

	struct curl_waitfd watched = {.fd = client->watched, .events = CURL_WAIT_POLLIN};

	while (client->first_done == NULL && (client->in_flight > 0 || client->watched >= 0)) {
		int running = 0;
		watched.revents = 0;
		curl_multi_perform(client->multi, &running);
		collect(client);
		int64_t left = until - runtime_now_ms();
		if (client->first_done != NULL || left <= 0 || timeout_ms <= 0) {
			break;
		}
		notify_alive();
		curl_multi_poll(client->multi, &watched, client->watched >= 0 ? 1 : 0, notify_wait_ms(left), NULL);
		if (watched.revents != 0) {
			break;
		}
	}
	return take_done(client);
}

void http_permit(http_client *client, int64_t until_ms)
{
	client->permit_ms = until_ms;
	for (int64_t i = 0; until_ms == 0 && i < client->settings.calls_max; i++) {
		client->slots[i].withheld = true;
	}
}

void http_watch(http_client *client, int descriptor)
{
	client->watched = descriptor;
}

size_t http_in_flight(const http_client *client)
{
	return client->in_flight;
}

void http_call_clear(http_call *call)
{
	free(call->response_body);
	free(call->content_type);
	call->response_body = call->content_type = NULL;
	call->response_length = 0;
}
