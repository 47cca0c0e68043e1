/* SPDX-License-Identifier: PostgreSQL */
/*
 * webhook.c: each event as an HTTP POST, signed as www.standardwebhooks.com specifies. Calls run in
 * parallel (runtime/http_client.c); this file decides what an answer means for the event.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "http_client.h"
#include "relay_settings.h"
#include "signature.h"
#include "sink.h"

#define KEYS_MAX 8
#define HEADERS_MAX 32
#define CONNECT_MS_MAX 10000
#define IN_FLIGHT_STANDARD 64
#define RETRY_AFTER_MS_MAX (INT64_C(24) * 60 * 60 * 1000)
#define ANSWER_BYTES_SHOWN 160
#define STATUS_END 600

struct sink {
	const char *url;
	const char *ca_file, *certificate_file, *key_file;
	int64_t allow_private, allow_plain;
	int64_t timeout_ms, in_flight;
	signature_key keys[KEYS_MAX];
	size_t key_count;
	http_header headers[HEADERS_MAX]; /* of the configuration, sent with each call */
	size_t header_count;
	char *texts[HEADERS_MAX]; /* their texts */
	size_t text_count;
	const char *final;
	bool is_final[STATUS_END];
	bool one_endpoint; /* all events go to one host: if it is away, so is the sink */
	http_client *client;
	struct delivery *first; /* of those on their way */
};

/* One message on its way. The headers that vary from call to call are kept here. */
typedef struct delivery {
	http_call call;
	sink_message *message;
	struct delivery *next, *previous; /* on their way */
	char timestamp[24];
	char idempotency_key[80];
	char signature[KEYS_MAX * SIGNATURE_BYTES_EACH];
	http_header headers[];
} delivery;

/* ---- options */

static const config_option options[] = {
    {.name = "url",
     .kind = CONFIG_TEXT,
     .offset = offsetof(sink, url),
     .help =
         "where to POST; {topic} and {tenant} are replaced. Instead of it, routes may name URLs: route = order.* -> "
         "https://shop.example/hooks/{topic}"},
    {.name = "secret",
     .kind = CONFIG_REPEATED,
     .help =
         "sign with this key, as www.standardwebhooks.com specifies: whsec_ and 24 to 64 bytes in base64 (openssl rand "
         "-base64 32). "
         "To replace a key, set both for a while: each event then has two signatures"},
    {.name = "secret_file", .kind = CONFIG_REPEATED, .help = "as secret, read from a file"},
    {.name = "header", .kind = CONFIG_REPEATED, .help = "a header for each call: Name: value"},
    {.name = "header_file",
     .kind = CONFIG_REPEATED,
     .help = "as header, read from a file (Authorization: Bearer ...), one on each line"},
    {.name = "ca_file",
     .kind = CONFIG_TEXT,
     .offset = offsetof(sink, ca_file),
     .help = "the certificates (PEM) that a server's certificate must be signed by; default: the system's"},
    {.name = "certificate_file",
     .kind = CONFIG_TEXT,
     .offset = offsetof(sink, certificate_file),
     .help = "the client's certificate (PEM), if the server asks for one"},
    {.name = "key_file",
     .kind = CONFIG_TEXT,
     .offset = offsetof(sink, key_file),
     .help = "the private key (PEM) of certificate_file"},
    {.name = "final",
     .kind = CONFIG_TEXT,
     .offset = offsetof(sink, final),
     .standard = "410",
     .help = "statuses that further attempts cannot change, separated by commas: the event is dead at once. 4xx means "
             "400 to "
             "499 except 408, 425 and 429, which ask for another attempt. none: each event has all its attempts"},
    {.name = "allow_private",
     .kind = CONFIG_FLAG,
     .offset = offsetof(sink, allow_private),
     .standard = "no",
     .help = "also connect to addresses that are not public: loopback, private networks, link-local, a cloud's "
             "metadata service. The address of the actual connection is checked, not only the name"},
    {.name = "allow_plain",
     .kind = CONFIG_FLAG,
     .offset = offsetof(sink, allow_plain),
     .standard = "no",
     .help = "http:// as well as https://"},
    {.name = NULL}};

typedef struct place {
	const config *config;
	const config_section *section;
	const config_entry *entry;
} place;

static char *add_secret(sink *sink, place place, const char *text)
{
	if (sink->key_count == KEYS_MAX) {
		return config_problem(place.config, place.section, place.entry,
		                      "more than %d secrets: remove those that are replaced", KEYS_MAX);
	}
	if (!signature_read_key(text, &sink->keys[sink->key_count])) {
		return config_problem(place.config, place.section, place.entry,
		                      "this is no secret: write whsec_ and 24 to 64 bytes in base64 (openssl rand -base64 32)");
	}
	sink->key_count++;
	return NULL;
}

/* Headers of the call itself, and those that only this sink may set. */
static bool is_own_header(const char *name)
{
	static const char *const names[] = {
	    "Host",
	    "Content-Length",
	    "Content-Type",
	    "Transfer-Encoding",
	    "Connection",
	    "Keep-Alive",
	    "TE",
	    "Trailer",
	    "Upgrade",
	    "Expect",
	    "Proxy-Connection",
	    "Proxy-Authorization",
	    "HTTP2-Settings",
	    "Idempotency-Key",
	    "webhook-id",
	    "webhook-timestamp",
	    "webhook-signature",
	};
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		if (strcasecmp(names[i], name) == 0) {
			return true;
		}
	}
	return false;
}

/* "Name: value"; the line is cut in two. */
static char *add_header(sink *sink, place place, char *line)
{
	static const char token[] = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
	size_t length = strspn(line, token);

	if (length == 0 || line[length] != ':') {
		return config_problem(place.config, place.section, place.entry, "this is no header: write Name: value");
	}
	line[length] = '\0';
	char *value = line + length + 1;
	value += strspn(value, " \t");
	if (is_own_header(line)) {
		return config_problem(place.config, place.section, place.entry, "%s is set by pgonce itself", line);
	}
	if (sink->header_count == HEADERS_MAX) {
		return config_problem(place.config, place.section, place.entry, "more than %d headers", HEADERS_MAX);
	}
	sink->headers[sink->header_count++] = (http_header){.name = line, .value = value};
	return NULL;
}

/* Takes over the text. */
static char *add_headers(sink *sink, place place, char *text)
{
	char *problem = NULL, *rest = NULL;

	if (sink->text_count == HEADERS_MAX || text == NULL) {
		free(text);
		return config_problem(place.config, place.section, place.entry, "more than %d headers", HEADERS_MAX);
	}
	sink->texts[sink->text_count++] = text;
	for (char *line = strtok_r(text, "\r\n", &rest); line != NULL && problem == NULL;
	     line = strtok_r(NULL, "\r\n", &rest)) {
		problem = add_header(sink, place, line);
	}
	return problem;
}

static char *read_entry(sink *sink, place place)
{
	const char *name = place.entry->name;
	char *problem = NULL;

	if (strcmp(name, "secret") == 0) {
		return add_secret(sink, place, place.entry->value);
	}
	if (strcmp(name, "header") == 0) {
		return add_headers(sink, place, strdup(place.entry->value));
	}
	if (strcmp(name, "secret_file") != 0 && strcmp(name, "header_file") != 0) {
		return NULL;
	}
	char *text = config_file_text(place.config, place.section, place.entry, &problem);
	if (text != NULL && name[0] == 'h') {
		return add_headers(sink, place, text);
	}
	if (text != NULL) {
		problem = add_secret(sink, place, text);
	}
	free(text);
	return problem;
}

/* ---- URLs */

/* A URL's text with a harmless value for each placeholder; NULL: out of memory. */
static char *without_placeholders(const char *url)
{
	char *copy = strdup(url);
	char *to = copy;

	for (const char *from = url; copy != NULL && *from != '\0';) {
		size_t skipped = strncmp(from, "{topic}", 7) == 0 ? 7 : strncmp(from, "{tenant}", 8) == 0 ? 8 : 0;
		*to++ = skipped > 0 ? 'x' : *from;
		from += skipped > 0 ? skipped : 1;
	}
	if (copy != NULL) {
		*to = '\0';
	}
	return copy;
}

static char *check_url(const sink *sink, place place, const char *url)
{
	http_settings settings = {.allow_plain = sink->allow_plain != 0};
	char *plain = without_placeholders(url);
	const char *wrong = plain != NULL ? http_check_url(&settings, plain) : "out of memory";
	char *problem = wrong[0] != '\0' ? config_problem(place.config, place.section, place.entry, "%s", wrong) : NULL;

	free(plain);
	return problem;
}

/* "https://host:port" of the URL. */
static size_t origin_length(const char *url)
{
	const char *host = strstr(url, "://");
	return host == NULL ? 0 : (size_t)(host - url) + 3 + strcspn(host + 3, "/?#");
}

/* Another URL of this section: notes whether all still go to one host. */
static void note_origin(sink *sink, const char *url, const char **first)
{
	size_t length = origin_length(url);

	if (*first == NULL) {
		*first = url;
		sink->one_endpoint = memchr(url, '{', length) == NULL;
	} else if (origin_length(*first) != length || strncasecmp(*first, url, length) != 0) {
		sink->one_endpoint = false;
	}
}

static char *read_destinations(sink *sink, const config *config, const config_section *section)
{
	const config_entry *url = config_entry_of(section, "url");
	const char *first = NULL;
	char *problem = NULL;

	for (size_t i = 0; i < section->entry_count && problem == NULL; i++) {
		place place = {config, section, &section->entries[i]};
		if (strcmp(place.entry->name, "dead_topic") == 0) {
			/*
			 * The host of the copies is not the events' host: whether it is away says nothing about
			 * theirs.
			 */
			problem = check_url(sink, place, place.entry->value);
			continue;
		}
		if (strcmp(place.entry->name, "route") != 0) {
			continue;
		}
		if (url != NULL) {
			return config_problem(config, section, url,
			                      "is not used where there are routes: their right side is the URL");
		}
		const char *target = route_entry_destination(place.entry);
		if (target != NULL) {
			problem = check_url(sink, place, target);
			note_origin(sink, target, &first);
		}
	}
	if (problem == NULL && url != NULL) {
		problem = check_url(sink, (place){config, section, url}, url->value);
		note_origin(sink, url->value, &first);
	} else if (problem == NULL && first == NULL) {
		problem = config_problem(config, section, NULL, "option url is missing: where the events go");
	}
	return problem;
}

/* ---- opening and closing */

static void forget(sink *sink, delivery *delivery)
{
	if (delivery->next != NULL) {
		delivery->next->previous = delivery->previous;
	}
	*(delivery->previous != NULL ? &delivery->previous->next : &sink->first) = delivery->next;
	http_call_clear(&delivery->call);
	free(delivery);
}

static void close_sink(sink *sink)
{
	http_client_free(sink->client);
	for (delivery *next = NULL, *each = sink->first; each != NULL; each = next) {
		next = each->next;
		http_call_clear(&each->call);
		free(each);
	}
	for (size_t i = 0; i < sink->text_count; i++) {
		free(sink->texts[i]);
	}
	free(sink);
}

/* Statuses that ask for another attempt: RFC 9110, 15.5.9 and 15.6.4; RFC 8470; RFC 6585, 4. */
static bool asks_again(int status)
{
	return status == 408 || status == 425 || status == 429 || status == 503;
}

/* "410", or "4xx": all of that hundred. False: neither. */
static bool add_final(sink *sink, const char *word, size_t length)
{
	bool is_class =
	    length == 3 && (word[0] == '3' || word[0] == '4' || word[0] == '5') && word[1] == 'x' && word[2] == 'x';
	int status = 0;

	if (!is_class && (length != 3 || strspn(word, "0123456789") < length)) {
		return false;
	}
	if (is_class) {
		for (status = (word[0] - '0') * 100; status % 100 < 99; status++) {
			sink->is_final[status] = !asks_again(status);
		}
		sink->is_final[status] = true;
		return true;
	}
	status = (word[0] - '0') * 100 + (word[1] - '0') * 10 + word[2] - '0';
	if (status < 300 || status >= STATUS_END || asks_again(status)) {
		return false;
	}
	sink->is_final[status] = true;
	return true;
}

static char *read_final(sink *sink, place place)
{
	static const char between[] = ", \t";
	const char *at = sink->final + strspn(sink->final, between);

	if (strcmp(sink->final, "none") == 0) {
		return NULL;
	}
	if (*at == '\0') {
		return config_problem(place.config, place.section, place.entry, "write statuses, or none");
	}
	while (*at != '\0') {
		size_t length = strcspn(at, between);
		if (!add_final(sink, at, length)) {
			return config_problem(
			    place.config, place.section, place.entry,
			    "'%.*s': write statuses from 300 to 599, 3xx, 4xx or 5xx, or none; 408, 425, 429 and 503 ask "
			    "for another attempt",
			    (int)length, at);
		}
		at += length;
		at += strspn(at, between);
	}
	return NULL;
}

/* The problem, or NULL. */
static char *check_files(const sink *sink, const config *config, const config_section *section)
{
	static const char *const names[] = {"ca_file", "certificate_file", "key_file"};
	const char *const paths[] = {sink->ca_file, sink->certificate_file, sink->key_file};

	for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
		if (paths[i] != NULL && access(paths[i], R_OK) != 0) {
			return config_problem(config, section, config_entry_of(section, names[i]), "cannot read %s: %s", paths[i],
			                      strerror(errno));
		}
	}
	return NULL;
}

static bool read_options(const config *config, const config_section *section, sink **result, char **problem)
{
	sink *made = calloc(1, sizeof *made);

	*problem = NULL;
	if (made == NULL) {
		*problem = config_problem(config, section, NULL, "out of memory");
		return false;
	}
	relay_settings relay;
	if (config_apply(config, section, options, made, problem) &&
	    config_apply(config, section, relay_options, &relay, problem)) {
		made->timeout_ms = relay.timeout_ms;
		made->in_flight = relay.in_flight > 0 ? relay.in_flight : IN_FLIGHT_STANDARD;
		*problem = read_destinations(made, config, section);
	}
	if (*problem == NULL) {
		*problem = read_final(made, (place){config, section, config_entry_of(section, "final")});
	}
	for (size_t i = 0; i < section->entry_count && *problem == NULL; i++) {
		*problem = read_entry(made, (place){config, section, &section->entries[i]});
	}
	if (*problem == NULL && (made->certificate_file == NULL) != (made->key_file == NULL)) {
		*problem = config_problem(config, section,
		                          config_entry_of(section, made->key_file == NULL ? "certificate_file" : "key_file"),
		                          "certificate_file and key_file are given together, or neither is");
	}
	if (*problem == NULL) {
		*problem = check_files(made, config, section);
	}
	if (*problem != NULL) {
		close_sink(made);
		return false;
	}
	*result = made;
	return true;
}

static bool check_webhook(const config *config, const config_section *section, char **problem)
{
	sink *made = NULL;
	bool good = read_options(config, section, &made, problem);

	if (good) {
		close_sink(made);
	}
	return good;
}

static bool open_webhook(const speaker *speaker, const config *config, const config_section *section, sink **result,
                         char **problem)
{
	sink *made = NULL;

	if (!read_options(config, section, &made, problem)) {
		return false;
	}
	http_settings settings = {
	    .timeout_ms = made->timeout_ms,
	    .connect_timeout_ms = made->timeout_ms < CONNECT_MS_MAX ? made->timeout_ms : CONNECT_MS_MAX,
	    .calls_max = made->in_flight,
	    .response_bytes_max = ANSWER_BYTES_SHOWN,
	    .allow_private = made->allow_private != 0,
	    .allow_plain = made->allow_plain != 0,
	    .ca_file = made->ca_file,
	    .certificate_file = made->certificate_file,
	    .key_file = made->key_file,
	};
	made->client = http_client_new(&settings);
	if (made->client == NULL) {
		*problem = config_problem(config, section, NULL, "libcurl cannot be started: out of memory");
		close_sink(made);
		return false;
	}
	if (made->key_count == 0) {
		runtime_log(speaker, RUNTIME_INFO, "unsigned",
		            "reason=\"no secret is given: receivers cannot tell who sent an event\"");
	}
	*result = made;
	return true;
}

/* ---- sending */

static bool is_replaced(const sink *sink, const char *name)
{
	for (size_t i = 0; i < sink->header_count; i++) {
		if (strcasecmp(sink->headers[i].name, name) == 0) {
			return true;
		}
	}
	return is_own_header(name);
}

static void add(delivery *delivery, const char *name, const char *value)
{
	delivery->headers[delivery->call.header_count++] = (http_header){.name = name, .value = value};
}

static bool fill(const sink *sink, delivery *delivery, const sink_message *message)
{
	delivery->call.url = message->destination;
	delivery->call.headers = delivery->headers;
	delivery->call.body = message->body;
	delivery->call.user = delivery;
	snprintf(delivery->timestamp, sizeof delivery->timestamp, "%lld", (long long)time(NULL));
	/* A string of RFC 8941: a UUID needs no escapes. */
	snprintf(delivery->idempotency_key, sizeof delivery->idempotency_key, "\"%s\"", message->event_id);

	add(delivery, "Content-Type", message->content_type);
	for (size_t i = 0; i < message->header_count; i++) {
		/*
		 * The event's own headers come from the application: they must not change the call
		 * itself.
		 */
		if (!is_replaced(sink, message->headers[i].name)) {
			add(delivery, message->headers[i].name, message->headers[i].value);
		}
	}
	for (size_t i = 0; i < sink->header_count; i++) {
		add(delivery, sink->headers[i].name, sink->headers[i].value);
	}
	add(delivery, "Idempotency-Key", delivery->idempotency_key);
	add(delivery, "webhook-id", message->event_id);
	add(delivery, "webhook-timestamp", delivery->timestamp);
	if (sink->key_count == 0) {
		return true;
	}
	add(delivery, "webhook-signature", delivery->signature);
	return signature_make(sink->keys, sink->key_count, message->event_id, delivery->timestamp, message->body,
	                      delivery->signature);
}

static bool send_webhook(sink *sink, sink_message *message)
{
	enum {
		OWN_HEADERS = 5
	};
	size_t headers = message->header_count + sink->header_count + OWN_HEADERS;
	delivery *made = NULL;

	if (http_in_flight(sink->client) >= (size_t)sink->in_flight) {
		return false;
	}
	made = calloc(1, sizeof *made + headers * sizeof made->headers[0]);
	if (made == NULL || !fill(sink, made, message) || !http_start(sink->client, &made->call)) {
		free(made);
		return false;
	}
	made->message = message;
	made->next = sink->first;
	if (sink->first != NULL) {
		sink->first->previous = made;
	}
	sink->first = made;
	message->own = made;
	return true;
}

/* ---- results */

/*
 * The beginning of an answer's body, as text that can be stored and shown safely everywhere.
 */
static void show_answer(const http_call *call, char *text, size_t size)
{
	size_t used = 0;

	for (size_t i = 0; i < call->response_length && used < size - 1; i++) {
		unsigned char c = (unsigned char)call->response_body[i];
		char shown = c > '~' ? '?' : c < ' ' ? ' ' : (char)c;
		if (shown != ' ' || (used > 0 && text[used - 1] != ' ')) {
			text[used++] = shown;
		}
	}
	text[used] = '\0';
}

static void judge_answer(const sink *sink, const http_call *call, sink_result *result)
{
	char text[ANSWER_BYTES_SHOWN + 1];
	int status = call->status;

	if (status >= 200 && status <= 299) {
		result->verdict = SINK_DELIVERED;
		return;
	}
	result->verdict = status < STATUS_END && sink->is_final[status] ? SINK_FINAL : SINK_REFUSED;
	if (status == 429 || status == 503) {
		result->retry_after_ms = call->retry_after_ms < RETRY_AFTER_MS_MAX ? call->retry_after_ms : RETRY_AFTER_MS_MAX;
	}
	show_answer(call, text, sizeof text);
	snprintf(result->problem, sizeof result->problem, "HTTP %d%s%s%s", status,
	         status >= 300 && status <= 399 ? ", a redirect: they are not followed, name the final URL" : "",
	         text[0] != '\0' ? ": " : "", text);
}

static void judge(const sink *sink, const http_call *call, sink_result *result)
{
	result->retry_after_ms = -1;
	result->silent = call->result == HTTP_UNKNOWN || call->result == HTTP_UNSENT;
	result->problem[0] = '\0';
	if (call->result == HTTP_ANSWERED) {
		judge_answer(sink, call, result);
		return;
	}
	/*
	 * If all events go to one host and it is away, the sink is away. If one of several is away,
	 * only its own events fail.
	 */
	result->verdict = call->result == HTTP_WITHHELD                       ? SINK_WITHHELD
	                  : call->result == HTTP_UNSENT && sink->one_endpoint ? SINK_UNAVAILABLE
	                                                                      : SINK_REFUSED;
	snprintf(result->problem, sizeof result->problem, "%s%.220s",
	         call->result == HTTP_UNKNOWN ? "sent, and no answer: " : "", call->problem);
}

/* "https://host:port", without user and password: they are secret. */
static void lane_of_webhook(const sink *sink, const sink_message *message, char name[SINK_LANE_BYTES])
{
	const char *url = message->destination;
	size_t length = sink->one_endpoint ? 0 : origin_length(url);

	name[0] = '\0';
	if (length > 0) {
		const char *host = strstr(url, "://") + 3;
		const char *at = memrchr(host, '@', (size_t)(url + length - host));
		int scheme = (int)(host - url);
		host = at != NULL ? at + 1 : host;
		snprintf(name, SINK_LANE_BYTES, "%.*s%.*s", scheme, url, (int)(url + length - host), host);
	}
}

static size_t poll_webhook(sink *sink, int timeout_ms, sink_result *results, size_t most)
{
	size_t count = 0;

	while (count < most) {
		http_call *call = http_poll(sink->client, count == 0 ? timeout_ms : 0);
		if (call == NULL) {
			break;
		}
		delivery *delivery = call->user;
		results[count].message = delivery->message;
		delivery->message->own = NULL;
		judge(sink, call, &results[count]);
		forget(sink, delivery);
		count++;
	}
	return count;
}

static void permit_webhook(sink *sink, int64_t until_ms)
{
	http_permit(sink->client, until_ms);
}

const sink_class sink_webhook = {
    .name = "webhook",
    .options = options,
    .in_flight = IN_FLIGHT_STANDARD,
    .open = open_webhook,
    .check = check_webhook,
    .lane = lane_of_webhook,
    .send = send_webhook,
    .poll = poll_webhook,
    .permit = permit_webhook,
    .close = close_sink,
};
