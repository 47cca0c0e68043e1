/* SPDX-License-Identifier: PostgreSQL */
/* aws_credentials.c: see aws_credentials.h. Source: AWS SDKs and Tools Reference Guide. */
#include "aws_credentials.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "memory.h"

enum {
	ANSWER_BYTES = 256 * 1024,
	CONNECT_MS = 1000,
	ANSWER_MS = 3000,
	READ_AGAIN_MS = 60 * 1000, /* of what has no end of its own */
	EARLY_S = 5 * 60,          /* before the end */
	RENEW_MS = 1000,           /* no oftener, whatever the service says */
	BACKOFF_FIRST_MS = 1000,
	BACKOFF_MOST_MS = 30 * 1000,
	TOKEN_BYTES_MAX = 64 * 1024
};

struct aws_keychain {
	const service *service;
	const aws_address *address;
	aws_credentials current; /* access_key NULL: none yet */
	int64_t due_ms;          /* when to ask again */
	int64_t asked_ms;        /* when that was last done; 0: never */
	int failures;            /* in a row */
	char problem[BROKER_PROBLEM_BYTES];
};

static const char *from_environment(const char *name)
{
	const char *value = getenv(name);

	return value != NULL && value[0] != '\0' ? value : NULL;
}

static void wipe(char *text)
{
	if (text != NULL) {
		explicit_bzero(text, strlen(text));
		free(text);
	}
}

static void forget(aws_credentials *credentials)
{
	wipe(credentials->access_key);
	wipe(credentials->secret_key);
	wipe(credentials->token);
	*credentials = (aws_credentials){0};
}

/* ---- files */

char *aws_shared_path(const char *variable, const char *name)
{
	const char *given = from_environment(variable);
	const char *home = from_environment("HOME");

	return given != NULL ? memory_copy(given) : home != NULL ? memory_format("%s/.aws/%s", home, name) : NULL;
}

static char *trimmed(char *text)
{
	text += strspn(text, " \t\r\n");
	for (char *end = text + strlen(text); end > text && strchr(" \t\r\n", end[-1]) != NULL;) {
		*--end = '\0';
	}
	return text;
}

/* Is it the profile's "[name]"? In the file `config` all but the default are [profile NAME]. */
static bool is_profile(char *line, bool is_config, const char *profile)
{
	char *end = strchr(line, ']');

	if (end == NULL) {
		return false;
	}
	*end = '\0';
	char *name = trimmed(line + 1);
	bool prefixed = is_config && strncmp(name, "profile", 7) == 0 && (name[7] == ' ' || name[7] == '\t');
	if (is_config && !prefixed && strcmp(profile, "default") != 0) {
		return false;
	}
	return strcmp(prefixed ? trimmed(name + 7) : name, profile) == 0;
}

char *aws_profile_entry(const char *path, bool is_config, const char *profile, const char *name)
{
	FILE *file = fopen(path, "re");
	char *line = NULL, *found = NULL;
	size_t room = 0;
	bool inside = false;

	while (file != NULL && getline(&line, &room, file) >= 0) {
		bool is_nested = line[0] == ' ' || line[0] == '\t';
		char *text = trimmed(line);
		char *equals = strchr(text, '=');
		if (text[0] == '[') {
			inside = is_profile(text, is_config, profile);
		} else if (inside && !is_nested && equals != NULL && text[0] != '#' && text[0] != ';') {
			*equals = '\0';
			if (strcasecmp(trimmed(text), name) == 0) {
				wipe(found);
				found = memory_copy(trimmed(equals + 1));
			}
		}
	}
	if (line != NULL) {
		explicit_bzero(line, room);
	}
	free(line);
	if (file != NULL) {
		fclose(file);
	}
	return found;
}

/* A token of a file, which is replaced from time to time. */
static char *token_of(const char *path, char problem[BROKER_PROBLEM_BYTES])
{
	FILE *file = fopen(path, "re");
	char *text = memory_take(TOKEN_BYTES_MAX);
	size_t length = file == NULL ? 0 : fread(text, 1, TOKEN_BYTES_MAX - 1, file);

	if (file != NULL) {
		fclose(file);
	}
	char *copy = length == 0 ? NULL : memory_copy(trimmed(text));
	explicit_bzero(text, TOKEN_BYTES_MAX);
	free(text);
	if (copy == NULL) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "the token file %.150s cannot be read, or is empty", path);
	}
	return copy;
}

/* ---- asking whoever gives them out */

typedef struct question {
	const char *method, *url, *body;
	http_header headers[2];
	size_t header_count;
} question;

/* The body of a 2xx answer (free it); NULL: problem. */
static char *ask(const aws_keychain *keychain, const question *question, char problem[BROKER_PROBLEM_BYTES])
{
	http_call call = {.method = question->method,
	                  .url = question->url,
	                  .headers = question->headers,
	                  .header_count = question->header_count,
	                  .body = {.data = question->body, .length = question->body == NULL ? 0 : strlen(question->body)}};
	http_client *client = http_client_new(&(http_settings){.timeout_ms = ANSWER_MS,
	                                                       .connect_timeout_ms = CONNECT_MS,
	                                                       .calls_max = 1,
	                                                       .response_bytes_max = ANSWER_BYTES,
	                                                       .allow_private = true,
	                                                       .allow_plain = true,
	                                                       .ca_file = keychain->address->ca_file});
	if (client == NULL || !http_start(client, &call)) {
		http_client_free(client);
		snprintf(problem, BROKER_PROBLEM_BYTES, "memory is out");
		return NULL;
	}
	while (http_poll(client, ANSWER_MS) == NULL) {
		/* It has its own timeout. */
	}
	char *body = NULL;
	if (call.result != HTTP_ANSWERED) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "%.80s: %.150s", question->url, call.problem);
	} else if (call.status < 200 || call.status > 299) {
		char *text =
		    aws_xml_text(call.response_body == NULL ? "" : call.response_body, call.response_length, "Message");
		snprintf(problem, BROKER_PROBLEM_BYTES, "%.80s: HTTP %d%s%.120s", question->url, call.status,
		         text == NULL ? "" : ": ", text == NULL ? "" : text);
		free(text);
	} else {
		body = memory_copy(call.response_body == NULL ? "" : call.response_body);
	}
	if (call.response_body != NULL) {
		explicit_bzero(call.response_body, call.response_length);
	}
	http_call_clear(&call);
	http_client_free(client);
	return body;
}

/* "2026-01-31T12:00:00Z"; 0: it is none. */
static int64_t time_of(const char *text)
{
	struct tm utc = {0};

	return text == NULL || strptime(text, "%Y-%m-%dT%H:%M:%S", &utc) == NULL ? 0 : (int64_t)timegm(&utc);
}

/* What containers and machines answer with. */
static bool read_json(const char *body, const char *url, aws_credentials *to, char problem[BROKER_PROBLEM_BYTES])
{
	json_t *json = json_loads(body, 0, NULL);
	const char *access_key = json_string_value(json_object_get(json, "AccessKeyId"));
	const char *secret_key = json_string_value(json_object_get(json, "SecretAccessKey"));

	if (access_key != NULL && secret_key != NULL) {
		to->access_key = memory_copy(access_key);
		to->secret_key = memory_copy(secret_key);
		to->token = memory_copy(json_string_value(json_object_get(json, "Token")));
		to->expires_s = time_of(json_string_value(json_object_get(json, "Expiration")));
	} else {
		snprintf(problem, BROKER_PROBLEM_BYTES, "%.80s: what answers there gives no credentials", url);
	}
	json_decref(json);
	return to->access_key != NULL;
}

/* ---- the environment */

static bool environment_there(const aws_keychain *keychain)
{
	/* The section names a profile: that is what it means. */
	return !keychain->address->profile_given && from_environment("AWS_ACCESS_KEY_ID") != NULL &&
	       from_environment("AWS_SECRET_ACCESS_KEY") != NULL;
}

static bool environment_fetch(aws_keychain *keychain, aws_credentials *to, char problem[BROKER_PROBLEM_BYTES])
{
	(void)keychain, (void)problem;
	to->access_key = memory_copy(from_environment("AWS_ACCESS_KEY_ID"));
	to->secret_key = memory_copy(from_environment("AWS_SECRET_ACCESS_KEY"));
	to->token = memory_copy(from_environment("AWS_SESSION_TOKEN"));
	return true;
}

/* ---- a web identity */

static bool identity_there(const aws_keychain *keychain)
{
	return !keychain->address->profile_given && from_environment("AWS_WEB_IDENTITY_TOKEN_FILE") != NULL &&
	       from_environment("AWS_ROLE_ARN") != NULL;
}

static void put(FILE *to, const char *name, const char *value)
{
	fputs(name, to);
	aws_form_put(to, (once_bytes){.data = value, .length = strlen(value)});
}

/* Free it; NULL: memory is out. */
static char *identity_form(const char *role, const char *name, const char *token)
{
	char *text = NULL;
	size_t length = 0;
	FILE *to = open_memstream(&text, &length);

	if (to == NULL) {
		return NULL;
	}
	put(to, "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=", role);
	put(to, "&RoleSessionName=", name);
	put(to, "&WebIdentityToken=", token);
	return fclose(to) == 0 ? text : NULL;
}

static bool identity_read(const char *body, const char *url, aws_credentials *to, char problem[BROKER_PROBLEM_BYTES])
{
	size_t length = strlen(body);
	char *expires = aws_xml_text(body, length, "Expiration");

	to->access_key = aws_xml_text(body, length, "AccessKeyId");
	to->secret_key = aws_xml_text(body, length, "SecretAccessKey");
	to->token = aws_xml_text(body, length, "SessionToken");
	to->expires_s = time_of(expires);
	free(expires);
	if (to->access_key == NULL || to->secret_key == NULL || to->token == NULL) {
		forget(to);
		snprintf(problem, BROKER_PROBLEM_BYTES, "%.80s: what answers there gives no credentials", url);
		return false;
	}
	return true;
}

static bool identity_fetch(aws_keychain *keychain, aws_credentials *to, char problem[BROKER_PROBLEM_BYTES])
{
	const char *region = keychain->address->region;
	const char *end = strncmp(region, "cn-", 3) == 0 ? ".cn" : "";
	const char *given_url = from_environment("AWS_ENDPOINT_URL_STS");
	const char *session = from_environment("AWS_ROLE_SESSION_NAME");
	char *token = token_of(from_environment("AWS_WEB_IDENTITY_TOKEN_FILE"), problem);

	if (token == NULL) {
		return false;
	}
	char *url =
	    given_url != NULL ? memory_copy(given_url) : memory_format("https://sts.%s.amazonaws.com%s/", region, end);
	char *body = identity_form(from_environment("AWS_ROLE_ARN"), session != NULL ? session : "pgonce", token);
	const question question = {.url = url,
	                           .body = body == NULL ? "" : body,
	                           .headers = {{"Content-Type", "application/x-www-form-urlencoded"}},
	                           .header_count = 1};
	char *answer = ask(keychain, &question, problem);
	bool good = answer != NULL && identity_read(answer, url, to, problem);
	wipe(answer);
	wipe(body);
	wipe(token);
	free(url);
	return good;
}

/* ---- the shared file */

static char *file_entry(const aws_keychain *keychain, const char *name)
{
	char *path = aws_shared_path("AWS_SHARED_CREDENTIALS_FILE", "credentials");
	char *found = path == NULL ? NULL : aws_profile_entry(path, false, keychain->address->profile, name);

	free(path);
	if (found == NULL && (path = aws_shared_path("AWS_CONFIG_FILE", "config")) != NULL) {
		found = aws_profile_entry(path, true, keychain->address->profile, name);
		free(path);
	}
	return found;
}

static bool file_there(const aws_keychain *keychain)
{
	char *key = file_entry(keychain, "aws_access_key_id");
	bool there = key != NULL;

	wipe(key);
	return there || keychain->address->profile_given;
}

static bool file_fetch(aws_keychain *keychain, aws_credentials *to, char problem[BROKER_PROBLEM_BYTES])
{
	to->access_key = file_entry(keychain, "aws_access_key_id");
	to->secret_key = file_entry(keychain, "aws_secret_access_key");
	to->token = file_entry(keychain, "aws_session_token");
	if (to->access_key == NULL || to->secret_key == NULL) {
		forget(to);
		snprintf(problem, BROKER_PROBLEM_BYTES,
		         "~/.aws/credentials has no access key with its secret for the profile %.60s",
		         keychain->address->profile);
		return false;
	}
	return true;
}

/* ---- a container (ECS, EKS Pod Identity) */

static bool container_there(const aws_keychain *keychain)
{
	(void)keychain;
	return from_environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") != NULL ||
	       from_environment("AWS_CONTAINER_CREDENTIALS_FULL_URI") != NULL;
}

/* Where a token may be sent to in plain text: to this machine. */
static bool is_near(const char *url)
{
	static const char *const hosts[] = {"http://127.0.0.1",     "http://localhost",      "http://[::1]",
	                                    "http://169.254.170.2", "http://169.254.170.23", "http://[fd00:ec2::23]"};

	for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
		size_t length = strlen(hosts[i]);
		if (strncmp(url, hosts[i], length) == 0 && strchr(":/", url[length]) != NULL) {
			return true;
		}
	}
	return strncmp(url, "https://", 8) == 0;
}

static bool container_fetch(aws_keychain *keychain, aws_credentials *to, char problem[BROKER_PROBLEM_BYTES])
{
	const char *relative = from_environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
	const char *token_file = from_environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
	char *token = token_file != NULL ? token_of(token_file, problem)
	                                 : memory_copy(from_environment("AWS_CONTAINER_AUTHORIZATION_TOKEN"));
	char *url = relative != NULL ? memory_format("http://169.254.170.2%s", relative)
	                             : memory_copy(from_environment("AWS_CONTAINER_CREDENTIALS_FULL_URI"));
	char *answer = NULL;

	if (!is_near(url)) {
		snprintf(problem, BROKER_PROBLEM_BYTES,
		         "AWS_CONTAINER_CREDENTIALS_FULL_URI must be https://, or http:// to this machine: %.100s is neither",
		         url);
	} else if (token != NULL || token_file == NULL) {
		const question question = {
		    .method = "GET", .url = url, .headers = {{"Authorization", token}}, .header_count = token != NULL ? 1 : 0};
		answer = ask(keychain, &question, problem);
	}
	bool good = answer != NULL && read_json(answer, url, to, problem);
	wipe(answer);
	wipe(token);
	free(url);
	return good;
}

/* ---- the machine's role (EC2, IMDSv2) */

static bool machine_there(const aws_keychain *keychain)
{
	const char *disabled = from_environment("AWS_EC2_METADATA_DISABLED");

	(void)keychain;
	return disabled == NULL || strcasecmp(disabled, "true") != 0;
}

static bool machine_fetch(aws_keychain *keychain, aws_credentials *to, char problem[BROKER_PROBLEM_BYTES])
{
	const char *given = from_environment("AWS_EC2_METADATA_SERVICE_ENDPOINT");
	const char *base = given != NULL ? given : "http://169.254.169.254";
	const int base_length = (int)(strlen(base) - (base[strlen(base) - 1] == '/'));
	char *token_url = memory_format("%.*s/latest/api/token", base_length, base);
	char *list_url = memory_format("%.*s/latest/meta-data/iam/security-credentials/", base_length, base);
	char *token = ask(keychain,
	                  &(question){.method = "PUT",
	                              .url = token_url,
	                              .headers = {{"X-aws-ec2-metadata-token-ttl-seconds", "21600"}},
	                              .header_count = 1},
	                  problem);
	question question = {
	    .method = "GET", .url = list_url, .headers = {{"X-aws-ec2-metadata-token", token}}, .header_count = 1};
	char *roles = token == NULL ? NULL : ask(keychain, &question, problem);
	char *answer = NULL;
	bool good = false;

	if (roles != NULL) {
		roles[strcspn(roles, "\r\n")] = '\0'; /* there is one */
		char *url = memory_format("%s%s", list_url, roles);
		question.url = url;
		answer = ask(keychain, &question, problem);
		good = answer != NULL && read_json(answer, url, to, problem);
		free(url);
	}
	wipe(answer);
	free(roles);
	wipe(token);
	free(list_url);
	free(token_url);
	return good;
}

/* ---- the chain */

static const struct provider {
	const char *name;
	bool (*there)(const aws_keychain *keychain);
	bool (*fetch)(aws_keychain *keychain, aws_credentials *to, char problem[BROKER_PROBLEM_BYTES]);
	bool rereads; /* what it gives has no end, and may change all the same */
} providers[] = {
    {"environment", environment_there, environment_fetch, false},
    {"web identity", identity_there, identity_fetch, false},
    {"shared file", file_there, file_fetch, true},
    {"container", container_there, container_fetch, true},
    {"instance", machine_there, machine_fetch, true},
};

aws_keychain *aws_keychain_new(const service *service, const aws_address *address)
{
	aws_keychain *keychain = memory_take(sizeof *keychain);

	keychain->service = service;
	keychain->address = address;
	return keychain;
}

void aws_keychain_free(aws_keychain *keychain)
{
	if (keychain != NULL) {
		forget(&keychain->current);
		free(keychain);
	}
}

/* Some time before the end; of those that live shortly, halfway. */
static int64_t due_in_ms(const aws_credentials *credentials, bool rereads)
{
	int64_t left_s = credentials->expires_s - (int64_t)time(NULL);

	if (credentials->expires_s == 0) {
		return rereads ? READ_AGAIN_MS : INT64_MAX / 2;
	}
	return left_s > 2 * EARLY_S ? (left_s - EARLY_S) * 1000 : left_s > 2 ? left_s * 500 : RENEW_MS;
}

static const struct provider *provider_of(const aws_keychain *keychain)
{
	for (size_t i = 0; i < sizeof providers / sizeof providers[0]; i++) {
		if (providers[i].there(keychain)) {
			return &providers[i];
		}
	}
	return NULL;
}

static bool fetch(aws_keychain *keychain)
{
	const struct provider *provider = provider_of(keychain);
	aws_credentials fresh = {0};
	char problem[BROKER_PROBLEM_BYTES] = "";

	if (provider == NULL) {
		snprintf(keychain->problem, sizeof keychain->problem,
		         "no AWS credentials: neither the environment, a web identity, ~/.aws/credentials nor a container's or "
		         "instance's role gives any");
		return false;
	}
	if (!provider->fetch(keychain, &fresh, problem)) {
		snprintf(keychain->problem, sizeof keychain->problem, "no AWS credentials from the %s: %.200s", provider->name,
		         problem);
		return false;
	}
	bool is_new = keychain->current.access_key == NULL || strcmp(keychain->current.access_key, fresh.access_key) != 0;
	forget(&keychain->current);
	keychain->current = fresh;
	keychain->current.from = provider->name;
	keychain->due_ms = service_now_ms() + due_in_ms(&keychain->current, provider->rereads);
	service_log(keychain->service, is_new ? SERVICE_INFO : SERVICE_DEBUG, "credentials",
	            "from=\"%s\" access_key=%.4s...", provider->name, keychain->current.access_key);
	return true;
}

const aws_credentials *aws_keychain_get(aws_keychain *keychain, char problem[BROKER_PROBLEM_BYTES])
{
	const aws_credentials *current = &keychain->current;
	char quoted[SERVICE_QUOTE_BYTES];

	if (service_now_ms() >= keychain->due_ms) {
		keychain->asked_ms = service_now_ms();
		if (fetch(keychain)) {
			keychain->failures = 0;
		} else {
			/* What is there may be valid yet. */
			service_log(keychain->service, keychain->failures == 0 ? SERVICE_WARNING : SERVICE_DEBUG, "credentials",
			            "problem=%s", service_quote(keychain->problem, quoted));
			keychain->due_ms =
			    service_now_ms() + service_backoff_ms(++keychain->failures, BACKOFF_FIRST_MS, BACKOFF_MOST_MS);
		}
	}
	bool is_over = current->expires_s != 0 && (int64_t)time(NULL) >= current->expires_s;
	if (current->access_key != NULL && !(is_over && keychain->failures > 0)) {
		return current;
	}
	memcpy(problem, keychain->problem, BROKER_PROBLEM_BYTES);
	return NULL;
}

bool aws_keychain_renew(aws_keychain *keychain)
{
	if (service_now_ms() < keychain->asked_ms + RENEW_MS) {
		return false;
	}
	keychain->due_ms = 0;
	return true;
}
