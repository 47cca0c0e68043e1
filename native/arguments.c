/* SPDX-License-Identifier: PostgreSQL
 * A call's arguments and results: once._quick_check, the quick tests of _trace, _body and
 * _is_plain, and the shape of a row. */
#include "native.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_proc.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/jsonb.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

/* See once._is_plain. */
#define BODY_BYTES_PLAIN 8192
#define HEADERS_BYTES_MAX 65536
#define RESULT_TYPE_BYTES_MAX 255
#define RESULT_ID_BYTES_MAX 2048

#define RIGHTS_MAX 16 /* each call asks for two or three, for one or two roles */

/* Recent answers, valid until a function, a role, a membership or the database's owner changes: the
 * server's own memory of memberships is no larger, and is invalidated by the same messages. */
static struct {
	Oid function; /* InvalidOid: a free entry */
	Oid role;
	bool may;
} rights[RIGHTS_MAX];
static int right_next;
static uint64 rights_forgotten;

static void rights_changed(Datum unused, int cache, uint32 hash)
{
	(void)unused;
	(void)cache;
	(void)hash;
	memset(rights, 0, sizeof rights);
	rights_forgotten++;
}

void native_rights_init(void)
{
	CacheRegisterSyscacheCallback(PROCOID, rights_changed, (Datum)0);
	CacheRegisterSyscacheCallback(AUTHOID, rights_changed, (Datum)0);
	CacheRegisterSyscacheCallback(AUTHMEMROLEMEM, rights_changed, (Datum)0);
	CacheRegisterSyscacheCallback(DATABASEOID, rights_changed, (Datum)0);
}

bool native_may_execute(Oid function, Oid role)
{
	for (int i = 0; i < RIGHTS_MAX; i++) {
		if (rights[i].function == function && rights[i].role == role) {
			return rights[i].may;
		}
	}
	uint64 then = rights_forgotten;
#if PG_VERSION_NUM >= 160000
	bool may = object_aclcheck(ProcedureRelationId, function, role, ACL_EXECUTE) == ACLCHECK_OK;
#else
	bool may = pg_proc_aclcheck(function, role, ACL_EXECUTE) == ACLCHECK_OK;
#endif
	if (then == rights_forgotten) {
		rights[right_next].function = function;
		rights[right_next].role = role;
		rights[right_next].may = may;
		right_next = (right_next + 1) % RIGHTS_MAX;
	}
	return may;
}

/* The plain paths require READ COMMITTED, a transaction that may write, and a caller that may name
 * any tenant. */
bool native_session_is_plain(const native_contract *contract)
{
	if (XactReadOnly || IsolationUsesXactSnapshot() || IsInParallelMode() || OidIsValid(GetCurrentRoleId())) {
		return false;
	}
	return native_may_execute(contract->any_tenant, GetSessionUserId());
}

/* once._check_and_lock without the lock: once._quick_check and the key's bucket. Everything
 * accepted here is accepted by once._check. scope, fingerprint: the arguments' numbers; -1: no such
 * argument (scope and key: 'none'). */
bool native_quick_check(FunctionCallInfo fcinfo, const native_contract *contract, native_intent *intent, int scope,
                        int fingerprint, int tenant)
{
	if ((scope >= 0 && (PG_ARGISNULL(scope) || PG_ARGISNULL(scope + 1))) || PG_ARGISNULL(tenant) ||
	    (fingerprint >= 0 && PG_ARGISNULL(fingerprint))) {
		return false;
	}
	intent->scope = scope < 0 ? cstring_to_text("none") : PG_GETARG_TEXT_PP(scope);
	intent->key = scope < 0 ? intent->scope : PG_GETARG_TEXT_PP(scope + 1);
	intent->fingerprint = fingerprint < 0 ? NULL : PG_GETARG_BYTEA_PP(fingerprint);
	intent->tenant = PG_GETARG_TEXT_PP(tenant);
	intent->bucket = native_bucket(intent->key);
	size_t scope_bytes = VARSIZE_ANY_EXHDR(intent->scope);
	if (intent->bucket < 0 || scope_bytes == 0 || scope_bytes + VARSIZE_ANY_EXHDR(intent->tenant) > 255) {
		return false;
	}
	switch (fingerprint < 0 ? 16 : VARSIZE_ANY_EXHDR(intent->fingerprint)) {
	case 16:
	case 20:
	case 28:
	case 32:
	case 48:
	case 64:
		break;
	default:
		return false;
	}
	return native_session_is_plain(contract);
}

/* once._trace: the given text, or NULL if it is not a trace. */
text *native_trace_of(text *given)
{
	static const char shape[] = "00-hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh-hhhhhhhhhhhhhhhh-hh";

	const char *at = VARDATA_ANY(given);
	if (VARSIZE_ANY_EXHDR(given) != sizeof shape - 1) {
		return NULL;
	}
	for (size_t i = 0; i < sizeof shape - 1; i++) {
		if (shape[i] == 'h' ? !((at[i] >= '0' && at[i] <= '9') || (at[i] >= 'a' && at[i] <= 'f')) : at[i] != shape[i]) {
			return NULL;
		}
	}
	return strspn(at + 3, "0") >= 32 || strspn(at + 36, "0") >= 16 ? NULL : given;
}

text *native_trace(FunctionCallInfo fcinfo, int argument)
{
	return PG_ARGISNULL(argument) ? NULL : native_trace_of(PG_GETARG_TEXT_PP(argument));
}

/* The shape of a returned row; NULL if it has changed. Release it. */
TupleDesc native_shape(FunctionCallInfo fcinfo, Oid type, const Oid *columns, int count)
{
	if (get_fn_expr_rettype(fcinfo->flinfo) != type) {
		return NULL;
	}
	TupleDesc shape = lookup_rowtype_tupdesc(type, -1);
	bool fits = shape->natts == count;
	for (int i = 0; fits && i < count; i++) {
		fits = TupleDescAttr(shape, i)->atttypid == columns[i] && !TupleDescAttr(shape, i)->attisdropped;
	}
	if (!fits) {
		ReleaseTupleDesc(shape);
		return NULL;
	}
	return shape;
}

bool native_same_bytes(const void *one, const void *other)
{
	return VARSIZE_ANY_EXHDR(one) == VARSIZE_ANY_EXHDR(other) &&
	       memcmp(VARDATA_ANY(one), VARDATA_ANY(other), VARSIZE_ANY_EXHDR(one)) == 0;
}

/* Whether a text is given and longer than this. */
bool native_is_longer(NullableDatum given, int bytes)
{
	return !given.isnull && VARSIZE_ANY_EXHDR(DatumGetTextPP(given.value)) > (size_t)bytes;
}

/* The length of a JSON value as text, in bytes. */
int native_json_length(Jsonb *json)
{
	StringInfoData written;

	initStringInfo(&written);
	(void)JsonbToCString(&written, &json->root, (int)VARSIZE(json));
	pfree(written.data);
	return written.len;
}

/* Whether headers are an object that is not too large. */
bool native_headers_are_plain(NullableDatum given)
{
	Jsonb *headers = given.isnull ? NULL : DatumGetJsonbP(given.value);

	return headers == NULL || (JB_ROOT_IS_OBJECT(headers) && native_json_length(headers) <= HEADERS_BYTES_MAX);
}

/* An outcome that can be stored unchanged: once._body and once._is_plain. given: by the arguments'
 * numbers. */
bool native_outcome_is_plain(const NullableDatum *given, native_outcome *outcome)
{
	if (given[OUTCOME_TEXT].isnull + given[OUTCOME_JSON].isnull + given[OUTCOME_BODY].isnull < 2) {
		return false;
	}
	outcome->body_is_null = false;
	if (!given[OUTCOME_TEXT].isnull) {
		/* The database's encoding is UTF-8. */
		outcome->body = PointerGetDatum(DatumGetTextPP(given[OUTCOME_TEXT].value));
	} else if (!given[OUTCOME_JSON].isnull) {
		Jsonb *json = DatumGetJsonbP(given[OUTCOME_JSON].value);
		outcome->body = CStringGetTextDatum(JsonbToCString(NULL, &json->root, (int)VARSIZE(json)));
	} else if (!given[OUTCOME_BODY].isnull) {
		outcome->body = PointerGetDatum(DatumGetByteaPP(given[OUTCOME_BODY].value));
	} else {
		outcome->body = (Datum)0;
		outcome->body_is_null = true;
	}
	int32 status = given[OUTCOME_STATUS].isnull ? 0 : DatumGetInt32(given[OUTCOME_STATUS].value);
	return (outcome->body_is_null || VARSIZE_ANY_EXHDR(DatumGetPointer(outcome->body)) <= BODY_BYTES_PLAIN) &&
	       status >= 0 && status <= 999 && !native_is_longer(given[OUTCOME_RESULT_TYPE], RESULT_TYPE_BYTES_MAX) &&
	       !native_is_longer(given[OUTCOME_RESULT_ID], RESULT_ID_BYTES_MAX) &&
	       native_headers_are_plain(given[OUTCOME_HEADERS]);
}
