/* SPDX-License-Identifier: PostgreSQL */
/*
 * fingerprint.c: salted SHA-256 of a request. The tenant's salt comes from the contract and is kept for the session;
 * the hash of bytes and of HTTP-like requests is made here, that of jsonb by the server, whose canonical form it is.
 */
#include <stdlib.h>

#include <openssl/evp.h>

#include "internal.h"

static once_code fetch_salt(once_session *session, const char *tenant, once_error **error)
{
	if (session->salted && strcmp(session->salt_tenant, tenant) == 0) {
		return ONCE_OK;
	}
	call call;
	PGresult *result;
	call_start(&call, SQL_SALT);
	call_add_text(&call, tenant);
	once_code code = call_run(session, &call, &result, error);
	if (code != ONCE_OK) {
		return code;
	}
	if (PQgetlength(result, 0, 0) != SALT_BYTES || strlen(tenant) > SESSION_TENANT_MAX) {
		PQclear(result);
		return error_make(error, ONCE_CONTRACT, NULL, false, "the contract answered with a salt of an unknown form",
		                  NULL, "Run pgonce doctor.");
	}
	memcpy(session->salt, PQgetvalue(result, 0, 0), SALT_BYTES);
	memcpy(session->salt_tenant, tenant, strlen(tenant) + 1);
	session->salted = true;
	PQclear(result);
	return ONCE_OK;
}

typedef struct digest {
	EVP_MD_CTX *context;
	bool good;
} digest;

static void digest_add(digest *digest, const void *data, size_t length)
{
	digest->good = digest->good && (length == 0 || EVP_DigestUpdate(digest->context, data, length) == 1);
}

/* With its length before it: ("ab","c") and ("a","bc") must not be the same request. */
static void digest_add_part(digest *digest, const void *data, size_t length)
{
	unsigned char prefix[8];
	for (int i = 0; i < 8; i++) {
		prefix[i] = (unsigned char)((uint64_t)length >> (56 - 8 * i));
	}
	digest_add(digest, prefix, sizeof prefix);
	digest_add(digest, data, length);
}

static once_code digest_start(digest *digest, once_session *session, char tag, once_error **error)
{
	digest->context = EVP_MD_CTX_new();
	if (digest->context == NULL) {
		return error_no_memory(error);
	}
	digest->good = EVP_DigestInit_ex(digest->context, EVP_sha256(), NULL) == 1;
	digest_add(digest, session->salt, SALT_BYTES);
	digest_add(digest, &tag, 1);
	return ONCE_OK;
}

static once_code digest_end(digest *digest, once_fingerprint *fingerprint, once_error **error)
{
	bool good = digest->good && EVP_DigestFinal_ex(digest->context, fingerprint->bytes, NULL) == 1;
	EVP_MD_CTX_free(digest->context);
	return good ? ONCE_OK : error_no_memory(error);
}

once_code once_fingerprint_bytes(once_session *session, const char *tenant, once_bytes bytes,
                                 once_fingerprint *fingerprint, once_error **error)
{
	if (session == NULL || fingerprint == NULL) {
		return error_usage(error, "session and fingerprint must not be NULL");
	}
	digest digest = {0};
	once_code code = fetch_salt(session, text_or_empty(tenant), error);
	if (code == ONCE_OK) {
		code = digest_start(&digest, session, 'b', error);
	}
	if (code != ONCE_OK) {
		return code;
	}
	digest_add(&digest, bytes.data, bytes.length);
	return digest_end(&digest, fingerprint, error);
}

once_code once_fingerprint_json(once_session *session, const char *tenant, const char *json,
                                once_fingerprint *fingerprint, once_error **error)
{
	if (session == NULL || json == NULL || fingerprint == NULL) {
		return error_usage(error, "session, json and fingerprint must not be NULL");
	}
	call call;
	PGresult *result;
	call_start(&call, SQL_FINGERPRINT_JSON);
	call_add_text(&call, json);
	call_add_text(&call, text_or_empty(tenant));
	once_code code = call_run(session, &call, &result, error);
	if (code != ONCE_OK) {
		return code;
	}
	if (PQgetlength(result, 0, 0) != ONCE_FINGERPRINT_BYTES) {
		PQclear(result);
		return error_make(error, ONCE_CONTRACT, NULL, false,
		                  "the contract answered with a fingerprint of an unknown form", NULL, "Run pgonce doctor.");
	}
	memcpy(fingerprint->bytes, PQgetvalue(result, 0, 0), ONCE_FINGERPRINT_BYTES);
	PQclear(result);
	return ONCE_OK;
}

once_code once_fingerprint_request(once_session *session, const char *tenant, const char *method, const char *target,
                                   const char *content_type, once_bytes body, bool canonical_json,
                                   once_fingerprint *fingerprint, once_error **error)
{
	if (session == NULL || method == NULL || target == NULL || fingerprint == NULL) {
		return error_usage(error, "session, method, target and fingerprint must not be NULL");
	}
	char *canonical = NULL;
	bool no_memory = false;
	if (canonical_json && body.data != NULL) {
		size_t length;
		if (json_canonical(body.data, body.length, &canonical, &length, &no_memory)) {
			body = (once_bytes){.data = canonical, .length = length};
		} else if (no_memory) {
			return error_no_memory(error);
		}
	}
	digest digest = {0};
	once_code code = fetch_salt(session, text_or_empty(tenant), error);
	if (code == ONCE_OK) {
		code = digest_start(&digest, session, 'r', error);
	}
	if (code == ONCE_OK) {
		digest_add_part(&digest, method, strlen(method));
		digest_add_part(&digest, target, strlen(target));
		digest_add_part(&digest, text_or_empty(content_type), strlen(text_or_empty(content_type)));
		digest_add_part(&digest, body.data, body.data == NULL ? 0 : body.length);
		code = digest_end(&digest, fingerprint, error);
	}
	free(canonical);
	return code;
}
