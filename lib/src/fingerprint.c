/* SPDX-License-Identifier: PostgreSQL */
/*
 * fingerprint.c: salted SHA-256 of a request. The tenant's salt comes from the contract and is kept
 * for the session, or belongs to the caller (once_hash_*, for the gateway). The hash of bytes and
 * of HTTP-like requests is computed here, that of jsonb by the server, because the server defines
 * its canonical form.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include <openssl/evp.h>

#include "internal.h"
#include "pgonce_batcher.h"

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

/* OpenSSL 3 looks EVP_sha256() up again for each hash. Kept for the process. */
static const EVP_MD *sha256(void)
{
#if OPENSSL_VERSION_NUMBER >= 0x30000000L
	static _Atomic(EVP_MD *) kept;
	EVP_MD *found = atomic_load(&kept);
	EVP_MD *nothing = NULL;
	if (found != NULL) {
		return found;
	}
	found = EVP_MD_fetch(NULL, "SHA256", NULL);
	if (found != NULL && !atomic_compare_exchange_strong(&kept, &nothing, found)) {
		EVP_MD_free(found);
		found = nothing; /* another thread has set it */
	}
	return found == NULL ? EVP_sha256() : found;
#else
	return EVP_sha256();
#endif
}

typedef struct digest {
	EVP_MD_CTX *context;
	bool good;
} digest;

static void digest_add(digest *digest, const void *data, size_t length)
{
	digest->good = digest->good && (length == 0 || EVP_DigestUpdate(digest->context, data, length) == 1);
}

static void digest_add_length(digest *digest, uint64_t length)
{
	unsigned char prefix[8];
	for (int i = 0; i < 8; i++) {
		prefix[i] = (unsigned char)(length >> (56 - 8 * i));
	}
	digest_add(digest, prefix, sizeof prefix);
}

/* After its length: ("ab","c") and ("a","bc") must not be the same request. */
static void digest_add_part(digest *digest, const char *text)
{
	digest_add_length(digest, strlen(text));
	digest_add(digest, text, strlen(text));
}

static once_code digest_start(digest *digest, const unsigned char salt[ONCE_SALT_BYTES], char tag, once_error **error)
{
	digest->context = EVP_MD_CTX_new();
	if (digest->context == NULL) {
		return error_no_memory(error);
	}
	digest->good = EVP_DigestInit_ex(digest->context, sha256(), NULL) == 1;
	digest_add(digest, salt, ONCE_SALT_BYTES);
	digest_add(digest, &tag, 1);
	return ONCE_OK;
}

static void digest_free(digest *digest)
{
	EVP_MD_CTX_free(digest->context);
	digest->context = NULL;
}

static once_code digest_end(digest *digest, once_fingerprint *fingerprint, once_error **error)
{
	bool good = digest->good && EVP_DigestFinal_ex(digest->context, fingerprint->bytes, NULL) == 1;
	digest_free(digest);
	return good ? ONCE_OK : error_no_memory(error);
}

/* ---- An HTTP-like request, in pieces or complete: what is hashed, in which order ---- */

struct once_hash {
	digest digest;       /* of everything before the target */
	uint64_t body_bytes; /* announced */
	uint64_t added_bytes;
	bool finished;
	char target[];
};

once_code once_hash_start(const unsigned char salt[ONCE_SALT_BYTES], const char *method, const char *target,
                          const char *content_type, uint64_t body_bytes, once_hash **hash, once_error **error)
{
	if (salt == NULL || method == NULL || target == NULL || hash == NULL) {
		return error_usage(error, "salt, method, target and hash must not be NULL");
	}
	once_hash *made = calloc(1, sizeof *made + strlen(target) + 1);
	if (made == NULL) {
		return error_no_memory(error);
	}
	once_code code = digest_start(&made->digest, salt, 'r', error);
	if (code != ONCE_OK) {
		free(made);
		return code;
	}
	memcpy(made->target, target, strlen(target) + 1);
	digest_add_part(&made->digest, method);
	digest_add_part(&made->digest, text_or_empty(content_type));
	digest_add_length(&made->digest, body_bytes);
	made->body_bytes = body_bytes;
	*hash = made;
	return ONCE_OK;
}

once_code once_hash_add(once_hash *hash, once_bytes piece, once_error **error)
{
	if (hash == NULL || hash->finished || (piece.data == NULL && piece.length > 0)) {
		return error_usage(error, "pieces are added to a hash that is started and not finished");
	}
	/*
	 * Bytes beyond the announced length are refused here, otherwise the sum could overflow back to
	 * it.
	 */
	if (piece.length > hash->body_bytes - hash->added_bytes) {
		return error_usage(error, "the body is longer than body_bytes announced");
	}
	digest_add(&hash->digest, piece.data, piece.length);
	hash->added_bytes += piece.length;
	return ONCE_OK;
}

/* The target comes last, so that another target can be hashed without reading the body again. */
static once_code end_with(const once_hash *hash, const char *target, once_fingerprint *fingerprint, once_error **error)
{
	digest last = {.context = EVP_MD_CTX_new()};
	if (last.context == NULL) {
		return error_no_memory(error);
	}
	last.good = hash->digest.good && EVP_MD_CTX_copy_ex(last.context, hash->digest.context) == 1;
	digest_add_part(&last, target);
	return digest_end(&last, fingerprint, error);
}

once_code once_hash_finish(once_hash *hash, once_fingerprint *fingerprint, once_error **error)
{
	if (hash == NULL || hash->finished || fingerprint == NULL) {
		return error_usage(error, "a hash is finished once, and fingerprint must not be NULL");
	}
	if (hash->added_bytes != hash->body_bytes) {
		return error_usage(error, "the body is shorter than body_bytes announced");
	}
	hash->finished = true;
	return end_with(hash, hash->target, fingerprint, error);
}

once_code once_hash_redirect(const once_hash *hash, const char *target, once_fingerprint *fingerprint,
                             once_error **error)
{
	if (hash == NULL || !hash->finished || target == NULL || fingerprint == NULL) {
		return error_usage(error, "a redirect takes a finished hash, a target and a fingerprint");
	}
	return end_with(hash, target, fingerprint, error);
}

void once_hash_free(once_hash *hash)
{
	if (hash != NULL) {
		digest_free(&hash->digest);
		free(hash);
	}
}

once_code once_json_canonical(once_bytes json, char **canonical, size_t *length, once_error **error)
{
	if (canonical == NULL || length == NULL) {
		return error_usage(error, "canonical and length must not be NULL");
	}
	bool no_memory = false;
	*canonical = NULL;
	*length = 0;
	if (json.data != NULL && !json_canonical(json.data, json.length, canonical, length, &no_memory) && no_memory) {
		return error_no_memory(error);
	}
	return ONCE_OK;
}

/* ---- With a session, which knows the salt ---- */

once_code once_fingerprint_bytes(once_session *session, const char *tenant, once_bytes bytes,
                                 once_fingerprint *fingerprint, once_error **error)
{
	if (session == NULL || fingerprint == NULL) {
		return error_usage(error, "session and fingerprint must not be NULL");
	}
	digest digest = {0};
	once_code code = fetch_salt(session, text_or_empty(tenant), error);
	if (code == ONCE_OK) {
		code = digest_start(&digest, session->salt, 'b', error);
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
	size_t canonical_length;
	once_hash *hash = NULL;
	once_code code = ONCE_OK;
	if (canonical_json) {
		code = once_json_canonical(body, &canonical, &canonical_length, error);
		if (canonical != NULL) {
			body = (once_bytes){.data = canonical, .length = canonical_length};
		}
	}
	if (body.data == NULL) {
		body.length = 0;
	}
	if (code == ONCE_OK) {
		code = fetch_salt(session, text_or_empty(tenant), error);
	}
	if (code == ONCE_OK) {
		code = once_hash_start(session->salt, method, target, content_type, body.length, &hash, error);
	}
	if (code == ONCE_OK) {
		code = once_hash_add(hash, body, error);
	}
	if (code == ONCE_OK) {
		code = once_hash_finish(hash, fingerprint, error);
	}
	once_hash_free(hash);
	free(canonical);
	return code;
}
