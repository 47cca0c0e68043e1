/* SPDX-License-Identifier: PostgreSQL */
/* aws_credentials.c: see aws_credentials.h. Source: AWS SDKs and Tools Reference Guide. */
#include "aws_credentials.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "aws_profile.h"
#include "aws_sign.h"
#include "memory.h"

enum {
	ANSWER_BYTES = 256 * 1024,
	CONNECT_MS = 1000,
	ANSWER_MS = 3000,
	READ_AGAIN_MS = 60 * 1000, /* for credentials without an expiry */
	EARLY_S = 5 * 60,          /* before the expiry */
	RENEW_MS = 1000,           /* between two fetches, at least */
	BACKOFF_FIRST_MS = 1000,
	BACKOFF_MOST_MS = 30 * 1000,
	SKEW_S_MAX = 60 /* as in aws.c */
};
#define SESSION_NAME "pgonce"

struct aws_keychain {
	const speaker *speaker;
	const aws_address *address;
	aws_credentials current; /* access_key NULL: none yet */
	int64_t due_ms;          /* when to ask again */
	int64_t asked_ms;        /* when they were last fetched; 0: never */
	int failures;            /* in a row */
	char problem[BROKER_PROBLEM_BYTES];
};

static const char *from_environment(const char *name)
{
	const char *value = getenv(name);

	return value != NULL && value[0] != '\0' ? value : NULL;
}

/* ---- asking a provider */

typedef struct question {
	const char *method, *url, *body;
	http_header headers[6];
	size_t header_count;
	bool is_service; /* AWS's own, which a proxy from the environment may serve */
} question;

static once_bytes bytes_of(const char *text)
{
	return (once_bytes){.data = text, .length = text == NULL ? 0 : strlen(text)};
}

/* The body of a 2xx answer (aws_wipe it); NULL: problem. *date_s: of the answer; 0: none. */
static char *ask(const aws_keychain *keychain, const question *question, int64_t *date_s,
                 char problem[BROKER_PROBLEM_BYTES])
{
	http_call call = {.method = question->method,
	                  .url = question->url,
	                  .headers = question->headers,
	                  .header_count = question->header_count,
	                  .body = bytes_of(question->body)};
	http_client *client = http_client_new(&(http_settings){.timeout_ms = ANSWER_MS,
	                                                       .connect_timeout_ms = CONNECT_MS,
	                                                       .calls_max = 1,
	                                                       .response_bytes_max = ANSWER_BYTES,
	                                                       .allow_private = true,
	                                                       .allow_plain = true,
	                                                       .proxy_of_environment = question->is_service,
	                                                       .ca_file = keychain->address->ca_file});
	if (client == NULL || !http_start(client, &call)) {
		http_client_free(client);
		snprintf(problem, BROKER_PROBLEM_BYTES, "out of memory");
		return NULL;
	}
	while (http_poll(client, ANSWER_MS) == NULL) {
		/* It has its own timeout. */
	}
	char *body = NULL;
	const once_bytes answer = bytes_of(call.response_body);
	if (call.result != HTTP_ANSWERED) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "%.80s: %.150s", question->url, call.problem);
	} else if (call.status < 200 || call.status > 299) {
		char code[AWS_CODE_BYTES], said[BROKER_PROBLEM_BYTES];
		aws_error_read(answer, call.status, code, said);
		snprintf(problem, BROKER_PROBLEM_BYTES, "%.80s: %.160s", question->url, said);
	} else {
		body = memory_copy(call.response_body == NULL ? "" : call.response_body);
	}
	*date_s = call.date_s;
	if (call.response_body != NULL) {
		explicit_bzero(call.response_body, call.response_length);
	}
	http_call_clear(&call);
	http_client_free(client);
	return body;
}

static char *ask_plainly(const aws_keychain *keychain, const question *question, char problem[BROKER_PROBLEM_BYTES])
{
	int64_t date_s;

	return ask(keychain, question, &date_s, problem);
}

static bool gives_none(const char *from, char problem[BROKER_PROBLEM_BYTES])
{
	snprintf(problem, BROKER_PROBLEM_BYTES, "%.80s returns no credentials", from);
	return false;
}

/* Reads the answer of a container's or machine's endpoint, and frees it. */
static bool read_json(char *body, const char *url, aws_credentials *to, char problem[BROKER_PROBLEM_BYTES])
{
	bool good = body != NULL && (aws_credentials_read(bytes_of(body), to) || gives_none(url, problem));

	aws_wipe(body);
	return good;
}

/* Reads the answer of STS, and frees it. */
static bool read_xml(char *body, const char *url, aws_credentials *to, char problem[BROKER_PROBLEM_BYTES])
{
	bool good = body != NULL && (aws_credentials_read_xml(bytes_of(body), to) || gives_none(url, problem));

	aws_wipe(body);
	return good;
}

/* ---- the environment */

static bool environment_has(void)
{
	return from_environment("AWS_ACCESS_KEY_ID") != NULL && from_environment("AWS_SECRET_ACCESS_KEY") != NULL;
}

static bool environment_there(const aws_keychain *keychain)
{
	/* The section names a profile, so the environment does not count. */
	return !keychain->address->profile_given && environment_has();
}

static bool environment_fetch(aws_keychain *keychain, aws_credentials *to, char problem[BROKER_PROBLEM_BYTES])
{
	(void)keychain, (void)problem;
	to->access_key = memory_copy(from_environment("AWS_ACCESS_KEY_ID"));
	to->secret_key = memory_copy(from_environment("AWS_SECRET_ACCESS_KEY"));
	to->token = memory_copy(from_environment("AWS_SESSION_TOKEN"));
	return true;
}

/* ---- roles (STS) */

static char *sts_url(const aws_keychain *keychain)
{
	const char *region = keychain->address->region;
	const char *given = from_environment("AWS_ENDPOINT_URL_STS");

	return given != NULL
	           ? memory_copy(given)
	           : memory_format("https://sts.%s.amazonaws.com%s/", region, strncmp(region, "cn-", 3) == 0 ? ".cn" : "");
}

static void put(FILE *to, const char *name, const char *value)
{
	fputs(name, to);
	aws_form_put(to, bytes_of(value));
}

/* A token in a file proves the right to the role; the file is replaced from time to time. */
static bool exchange(const aws_keychain *keychain, const char *role, const char *session, const char *token_file,
                     aws_credentials *to, char problem[BROKER_PROBLEM_BYTES])
{
	char *token = aws_token_read(token_file, problem);
	char *url = sts_url(keychain), *body = NULL;
	size_t length = 0;
	FILE *form = token == NULL ? NULL : open_memstream(&body, &length);
	bool good = false;

	if (form != NULL) {
		put(form, "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=", role);
		put(form, "&RoleSessionName=", session == NULL ? SESSION_NAME : session);
		put(form, "&WebIdentityToken=", token);
		fclose(form);
		const question question = {.url = url,
		                           .body = body,
		                           .headers = {{"Content-Type", "application/x-www-form-urlencoded"}},
		                           .header_count = 1,
		                           .is_service = true};
		good = read_xml(ask_plainly(keychain, &question, problem), url, to, problem);
	}
	aws_wipe(body);
	aws_wipe(token);
	free(url);
	return good;
}

static char *ask_signed(const aws_keychain *keychain, const char *url, const char *body, const aws_credentials *base,
                        int64_t now_s, int64_t *date_s, char problem[BROKER_PROBLEM_BYTES])
{
	const char *authority = strstr(url, "://");
	char date[AWS_DATE_BYTES], authorization[AWS_AUTHORIZATION_BYTES];

	authority = authority == NULL ? url : authority + strlen("://");
	char *host = memory_format("%.*s", (int)strcspn(authority, "/"), authority);
	aws_date(now_s, date);
	question question = {.url = url,
	                     .body = body,
	                     .headers = {{"Host", host},
	                                 {"Content-Type", "application/x-www-form-urlencoded"},
	                                 {"X-Amz-Date", date},
	                                 {"X-Amz-Security-Token", base->token}},
	                     .header_count = base->token != NULL ? 4 : 3,
	                     .is_service = true};
	const aws_signing signing = {.method = "POST",
	                             .path = "/",
	                             .query = "",
	                             .headers = question.headers,
	                             .header_count = question.header_count,
	                             .body = bytes_of(body),
	                             .date = date,
	                             .region = keychain->address->region,
	                             .service = "sts",
	                             .access_key = base->access_key,
	                             .secret_key = base->secret_key};
	char *answer = NULL;
	if (aws_sign(&signing, authorization)) {
		question.headers[question.header_count++] = (http_header){"Authorization", authorization};
		answer = ask(keychain, &question, date_s, problem);
	} else {
		snprintf(problem, BROKER_PROBLEM_BYTES, "the call to STS cannot be signed: the credentials are too long");
	}
	free(host);
	return answer;
}

/* `base` proves the right to the role. If the clock is wrong, it is retried with STS's time. */
static bool assume(const aws_keychain *keychain, const char *profile, const char *role, const aws_credentials *base,
                   aws_credentials *to, char problem[BROKER_PROBLEM_BYTES])
{
	char *session = aws_shared_entry(profile, "role_session_name"),
	     *external = aws_shared_entry(profile, "external_id");
	char *seconds = aws_shared_entry(profile, "duration_seconds");
	char *url = sts_url(keychain), *body = NULL;
	size_t length = 0;
	FILE *form = open_memstream(&body, &length);
	int64_t now_s = (int64_t)time(NULL), date_s = 0;
	bool good = false;

	if (form != NULL) {
		put(form, "Action=AssumeRole&Version=2011-06-15&RoleArn=", role);
		put(form, "&RoleSessionName=", session == NULL ? SESSION_NAME : session);
		put(form, external == NULL ? "" : "&ExternalId=", external);
		put(form, seconds == NULL ? "" : "&DurationSeconds=", seconds);
		fclose(form);
		char *answer = ask_signed(keychain, url, body, base, now_s, &date_s, problem);
		int64_t off_s = date_s == 0 ? 0 : date_s - now_s;
		if (answer == NULL && (off_s > SKEW_S_MAX || off_s < -SKEW_S_MAX)) {
			answer = ask_signed(keychain, url, body, base, date_s, &date_s, problem);
		}
		good = read_xml(answer, url, to, problem);
	}
	free(body);
	free(url);
	free(seconds);
	free(external);
	free(session);
	return good;
}

/* ---- a web identity */

static bool identity_there(const aws_keychain *keychain)
{
	return !keychain->address->profile_given && from_environment("AWS_WEB_IDENTITY_TOKEN_FILE") != NULL &&
	       from_environment("AWS_ROLE_ARN") != NULL;
}

static bool identity_fetch(aws_keychain *keychain, aws_credentials *to, char problem[BROKER_PROBLEM_BYTES])
{
	return exchange(keychain, from_environment("AWS_ROLE_ARN"), from_environment("AWS_ROLE_SESSION_NAME"),
	                from_environment("AWS_WEB_IDENTITY_TOKEN_FILE"), to, problem);
}

/* ---- a container (ECS, EKS Pod Identity) */

static bool container_there(const aws_keychain *keychain)
{
	(void)keychain;
	return from_environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") != NULL ||
	       from_environment("AWS_CONTAINER_CREDENTIALS_FULL_URI") != NULL;
}

/* A token may be sent in plain text only to this machine. */
static bool is_near(const char *url)
{
	static const char *const hosts[] = {"http://127.0.0.1",     "http://localhost",      "http://[::1]",
	                                    "http://169.254.170.2", "http://169.254.170.23", "http://[fd00:ec2::23]"};

	for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
		size_t length = strlen(hosts[i]);
		/* Text before an @ is a name and a password, not a host. */
		if (strncmp(url, hosts[i], length) == 0 && strchr(":/", url[length]) != NULL &&
		    memchr(url + length, '@', strcspn(url + length, "/?#")) == NULL) {
			return true;
		}
	}
	return strncmp(url, "https://", 8) == 0;
}

static bool container_fetch(aws_keychain *keychain, aws_credentials *to, char problem[BROKER_PROBLEM_BYTES])
{
	const char *relative = from_environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
	const char *token_file = from_environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
	char *token = token_file != NULL ? aws_token_read(token_file, problem)
	                                 : memory_copy(from_environment("AWS_CONTAINER_AUTHORIZATION_TOKEN"));
	char *url = relative != NULL ? memory_format("http://169.254.170.2%s", relative)
	                             : memory_copy(from_environment("AWS_CONTAINER_CREDENTIALS_FULL_URI"));
	bool good = false;

	if (!is_near(url)) {
		snprintf(problem, BROKER_PROBLEM_BYTES,
		         "AWS_CONTAINER_CREDENTIALS_FULL_URI must be https://, or http:// to this machine: %.100s is neither",
		         url);
	} else if (token != NULL || token_file == NULL) {
		const question question = {
		    .method = "GET", .url = url, .headers = {{"Authorization", token}}, .header_count = token != NULL ? 1 : 0};
		good = read_json(ask_plainly(keychain, &question, problem), url, to, problem);
	}
	aws_wipe(token);
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
	char *token = ask_plainly(keychain,
	                          &(question){.method = "PUT",
	                                      .url = token_url,
	                                      .headers = {{"X-aws-ec2-metadata-token-ttl-seconds", "21600"}},
	                                      .header_count = 1},
	                          problem);
	question question = {
	    .method = "GET", .url = list_url, .headers = {{"X-aws-ec2-metadata-token", token}}, .header_count = 1};
	char *roles = token == NULL ? NULL : ask_plainly(keychain, &question, problem);
	bool good = false;

	if (roles != NULL) {
		roles[strcspn(roles, "\r\n")] = '\0'; /* the machine has a role */
		char *url = memory_format("%s%s", list_url, roles);
		question.url = url;
		good = read_json(ask_plainly(keychain, &question, problem), url, to, problem);
		free(url);
	}
	free(roles);
	aws_wipe(token);
	free(list_url);
	free(token_url);
	return good;
}

/* ---- the shared file: keys, a program, or a role assumed with them */

static bool has_entry(const char *profile, const char *name)
{
	char *value = aws_shared_entry(profile, name);
	bool has = value != NULL;

	aws_wipe(value);
	return has;
}

static bool keys_fetch(const char *profile, aws_credentials *to, char problem[BROKER_PROBLEM_BYTES])
{
	to->access_key = aws_shared_entry(profile, "aws_access_key_id");
	to->secret_key = aws_shared_entry(profile, "aws_secret_access_key");
	to->token = aws_shared_entry(profile, "aws_session_token");
	if (to->access_key == NULL || to->secret_key == NULL) {
		aws_credentials_wipe(to);
		snprintf(problem, BROKER_PROBLEM_BYTES,
		         "~/.aws/credentials has no access key with its secret for the profile %.60s", profile);
		return false;
	}
	return true;
}

/* A profile's own credentials, ignoring its role. */
static bool plain_fetch(const char *profile, aws_credentials *to, char problem[BROKER_PROBLEM_BYTES])
{
	bool has_key = has_entry(profile, "aws_access_key_id");
	char *command = has_key ? NULL : aws_shared_entry(profile, "credential_process");

	if (command != NULL) {
		char *output = aws_program_run(command, problem);
		bool good =
		    output != NULL && (aws_credentials_read(bytes_of(output), to) || gives_none("credential_process", problem));
		aws_wipe(output);
		free(command);
		return good;
	}
	if (!has_key && (has_entry(profile, "sso_session") || has_entry(profile, "sso_start_url"))) {
		snprintf(problem, BROKER_PROBLEM_BYTES,
		         "the profile %.30s needs SSO, which needs a person: use a credential_process with aws configure "
		         "export-credentials",
		         profile);
		return false;
	}
	return keys_fetch(profile, to, problem);
}

static bool source_fetch(aws_keychain *keychain, const char *source, aws_credentials *to,
                         char problem[BROKER_PROBLEM_BYTES])
{
	if (strcmp(source, "Environment") == 0 && environment_has()) {
		return environment_fetch(keychain, to, problem);
	}
	if (strcmp(source, "EcsContainer") == 0 && container_there(keychain)) {
		return container_fetch(keychain, to, problem);
	}
	if (strcmp(source, "Ec2InstanceMetadata") == 0 && machine_there(keychain)) {
		return machine_fetch(keychain, to, problem);
	}
	snprintf(problem, BROKER_PROBLEM_BYTES,
	         "credential_source = %.30s provides no credentials: use Environment, EcsContainer or Ec2InstanceMetadata",
	         source);
	return false;
}

/* The entries of ~/.aws/config that say with which credentials a role is assumed. */
typedef struct role {
	char *arn, *token_file, *from, *source, *session;
} role;

static bool role_fetch(aws_keychain *keychain, const char *profile, const role *role, aws_credentials *to,
                       char problem[BROKER_PROBLEM_BYTES])
{
	aws_credentials base = {0};
	bool good = false;

	if (has_entry(profile, "mfa_serial")) {
		snprintf(problem, BROKER_PROBLEM_BYTES,
		         "the profile %.40s needs a device's code (mfa_serial), which needs a person", profile);
	} else if (role->token_file != NULL) {
		good = exchange(keychain, role->arn, role->session, role->token_file, to, problem);
	} else if (role->from == NULL && role->source == NULL) {
		snprintf(problem, BROKER_PROBLEM_BYTES,
		         "the profile %.40s has role_arn: add source_profile or credential_source", profile);
	} else if (role->from != NULL && strcmp(role->from, profile) != 0 && has_entry(role->from, "role_arn")) {
		snprintf(
		    problem, BROKER_PROBLEM_BYTES,
		    "the profile %.30s gets its role through the role of %.30s, which is not supported: use credential_process",
		    profile, role->from);
	} else if (role->from != NULL ? plain_fetch(role->from, &base, problem)
	                              : source_fetch(keychain, role->source, &base, problem)) {
		good = assume(keychain, profile, role->arn, &base, to, problem);
	}
	aws_credentials_wipe(&base);
	return good;
}

static bool file_there(const aws_keychain *keychain)
{
	static const char *const names[] = {"aws_access_key_id", "role_arn", "credential_process", "sso_session",
	                                    "sso_start_url"};
	bool there = keychain->address->profile_given;

	for (size_t i = 0; !there && i < sizeof names / sizeof names[0]; i++) {
		there = has_entry(keychain->address->profile, names[i]);
	}
	return there;
}

static bool file_fetch(aws_keychain *keychain, aws_credentials *to, char problem[BROKER_PROBLEM_BYTES])
{
	const char *profile = keychain->address->profile;
	role role = {.arn = aws_shared_entry(profile, "role_arn"),
	             .token_file = aws_shared_entry(profile, "web_identity_token_file"),
	             .from = aws_shared_entry(profile, "source_profile"),
	             .source = aws_shared_entry(profile, "credential_source"),
	             .session = aws_shared_entry(profile, "role_session_name")};
	bool good =
	    role.arn != NULL ? role_fetch(keychain, profile, &role, to, problem) : plain_fetch(profile, to, problem);

	free(role.arn);
	free(role.token_file);
	free(role.from);
	free(role.source);
	free(role.session);
	return good;
}

/* ---- the chain */

static const struct provider {
	const char *name;
	bool (*there)(const aws_keychain *keychain);
	bool (*fetch)(aws_keychain *keychain, aws_credentials *to, char problem[BROKER_PROBLEM_BYTES]);
	bool rereads; /* its credentials have no expiry, but may change */
} providers[] = {
    {"environment", environment_there, environment_fetch, false},
    {"web identity", identity_there, identity_fetch, false},
    {"shared file", file_there, file_fetch, true},
    {"container", container_there, container_fetch, true},
    {"instance", machine_there, machine_fetch, true},
};

aws_keychain *aws_keychain_new(const speaker *speaker, const aws_address *address)
{
	aws_keychain *keychain = memory_take(sizeof *keychain);

	keychain->speaker = speaker;
	keychain->address = address;
	return keychain;
}

void aws_keychain_free(aws_keychain *keychain)
{
	if (keychain != NULL) {
		aws_credentials_wipe(&keychain->current);
		free(keychain);
	}
}

/* Some time before the expiry; halfway if they expire soon. */
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
		         "instance's role has any");
		return false;
	}
	if (!provider->fetch(keychain, &fresh, problem)) {
		snprintf(keychain->problem, sizeof keychain->problem, "no AWS credentials from the %s: %.200s", provider->name,
		         problem);
		return false;
	}
	bool is_new = keychain->current.access_key == NULL || strcmp(keychain->current.access_key, fresh.access_key) != 0;
	aws_credentials_wipe(&keychain->current);
	keychain->current = fresh;
	keychain->current.from = provider->name;
	keychain->due_ms = runtime_now_ms() + due_in_ms(&keychain->current, provider->rereads);
	runtime_log(keychain->speaker, is_new ? RUNTIME_INFO : RUNTIME_DEBUG, "credentials",
	            "from=\"%s\" access_key=%.4s...", provider->name, keychain->current.access_key);
	return true;
}

const aws_credentials *aws_keychain_get(aws_keychain *keychain, char problem[BROKER_PROBLEM_BYTES])
{
	const aws_credentials *current = &keychain->current;
	char quoted[RUNTIME_QUOTE_BYTES];

	if (runtime_now_ms() >= keychain->due_ms) {
		keychain->asked_ms = runtime_now_ms();
		if (fetch(keychain)) {
			keychain->failures = 0;
		} else {
			/* The present credentials may still be valid. */
			runtime_log(keychain->speaker, keychain->failures == 0 ? RUNTIME_WARNING : RUNTIME_DEBUG, "credentials",
			            "problem=%s", runtime_quote(keychain->problem, quoted));
			keychain->due_ms =
			    runtime_now_ms() + runtime_backoff_ms(++keychain->failures, BACKOFF_FIRST_MS, BACKOFF_MOST_MS);
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
	if (runtime_now_ms() < keychain->asked_ms + RENEW_MS) {
		return false;
	}
	keychain->due_ms = 0;
	return true;
}
