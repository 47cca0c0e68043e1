/* SPDX-License-Identifier: PostgreSQL
 * An intent's lock, its row, and the note that a transaction has started it: what
 * once._bucket, _lock_id, _note_start, _noted_start, _first_fence and _is_open do, and the
 * look-up and the INSERT of once.start and once.finish. */
#include "native.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"

#define LOCK_SEED 20778
#define NOTE "once.started"
#define DAY_MS INT64CONST(86400000)

static int hex_digit(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
	                              : -1;
}

/* Whether once._respelled would look closer: ^(urn:uuid:|[{])?01[89a-f] without regard to
 * case. */
static bool may_be_respelled(const char *key, int length)
{
	if (length > 45) {
		return false;
	}
	if (length > 9 && pg_strncasecmp(key, "urn:uuid:", 9) == 0) {
		key += 9;
		length -= 9;
	} else if (length > 1 && key[0] == '{') {
		key++;
		length--;
	}
	return length >= 3 && key[0] == '0' && key[1] == '1' && hex_digit(key[2]) >= 8;
}

int32 native_bucket(const text *key)
{
	int length = (int)VARSIZE_ANY_EXHDR(key);
	const char *at = VARDATA_ANY(key);

	if (length < 1 || length > 255) {
		return -1;
	}
	for (int i = 0; i < length; i++) {
		if (at[i] < ' ' || at[i] > '~') {
			return -1;
		}
	}
	if (length == 36 && at[8] == '-' && at[13] == '-' && at[14] == '7' && at[18] == '-' && at[23] == '-') {
		int64 ms = 0;
		int i = 0;
		for (; i < 36; i++) {
			if (i == 8 || i == 13 || i == 18 || i == 23) {
				continue;
			}
			int digit = hex_digit(at[i]);
			if (digit < 0) {
				break;
			}
			if (i < 13) {
				ms = ms * 16 + digit;
			}
		}
		if (i == 36) {
			return (int32)Max(ms / DAY_MS, 1);
		}
	}
	return may_be_respelled(at, length) ? -1 : 0;
}

static uint64 text_hash(const text *of)
{
	return DatumGetUInt64(
	    hash_any_extended((const unsigned char *)VARDATA_ANY(of), (int)VARSIZE_ANY_EXHDR(of), LOCK_SEED));
}

/* As hash_array_extended does it: see once._lock_id. */
static uint64 lock_id(const native_intent *intent)
{
	uint64 hash = 1;
	hash = (hash << 5) - hash + text_hash(intent->tenant);
	hash = (hash << 5) - hash + text_hash(intent->scope);
	return (hash << 5) - hash + text_hash(intent->key);
}

/* pg_try_advisory_xact_lock; or only asks whether this backend has it. */
bool native_lock(const native_intent *intent, bool held_already)
{
	uint64 id = lock_id(intent);
	LOCKTAG tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32)(id >> 32), (uint32)id, 1);
	if (held_already) {
#if PG_VERSION_NUM >= 170000
		return LockHeldByMe(&tag, ExclusiveLock, false);
#else
		return LockHeldByMe(&tag, ExclusiveLock);
#endif
	}
	return LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

/* A copy of the intent's row, or NULL. */
HeapTuple native_look(native_tables *tables, const native_intent *intent, Snapshot snapshot)
{
	ScanKeyData keys[4];
	HeapTuple copy = NULL;

	ScanKeyEntryInitialize(&keys[0], 0, 1, BTEqualStrategyNumber, InvalidOid, C_COLLATION_OID, F_TEXTEQ,
	                       PointerGetDatum(intent->tenant));
	ScanKeyEntryInitialize(&keys[1], 0, 2, BTEqualStrategyNumber, InvalidOid, C_COLLATION_OID, F_TEXTEQ,
	                       PointerGetDatum(intent->scope));
	ScanKeyEntryInitialize(&keys[2], 0, 3, BTEqualStrategyNumber, InvalidOid, C_COLLATION_OID, F_TEXTEQ,
	                       PointerGetDatum(intent->key));
	ScanKeyEntryInitialize(&keys[3], 0, 4, BTEqualStrategyNumber, InvalidOid, InvalidOid, F_INT4EQ,
	                       Int32GetDatum(intent->bucket));

	Relation index = index_open(tables->known.primary_key, AccessShareLock);
	TupleTableSlot *slot = table_slot_create(tables->leaf, NULL);
#if PG_VERSION_NUM >= 180000
	IndexScanDesc scan = index_beginscan(tables->leaf, index, snapshot, NULL, 4, 0);
#else
	IndexScanDesc scan = index_beginscan(tables->leaf, index, snapshot, 4, 0);
#endif
	index_rescan(scan, keys, 4, NULL, 0);
	if (index_getnext_slot(scan, ForwardScanDirection, slot)) {
		copy = ExecCopySlotHeapTuple(slot);
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, NoLock);
	return copy;
}

Datum native_column_get(native_tables *tables, HeapTuple row, int column, bool *is_null)
{
	return heap_getattr(row, tables->known.columns[column], RelationGetDescr(tables->leaf), is_null);
}

/* One row, whose key was just looked for under the intent's lock. What else an INSERT does
 * (triggers, CHECKs, rules, row security, other indexes) is not there: native_leaf_find has
 * seen to it, and the lock on the table keeps it so. */
void native_insert(native_tables *tables, const Datum *values, const bool *nulls)
{
	Datum row[NATTS_MAX];
	bool row_nulls[NATTS_MAX];
	int natts = tables->known.natts;

	memset(row, 0, sizeof(Datum) * (size_t)natts);
	memset(row_nulls, true, sizeof(bool) * (size_t)natts);
	for (int i = 0; i < COLUMN_COUNT; i++) {
		int at = tables->known.columns[i] - 1;
		row[at] = values[i];
		row_nulls[at] = nulls[i];
	}
	HeapTuple tuple = heap_form_tuple(RelationGetDescr(tables->leaf), row, row_nulls);
	CatalogTupleInsert(tables->leaf, tuple);
	heap_freetuple(tuple);
	CommandCounterIncrement();
}

/* RS US tenant US scope US key US: what a note of this intent begins with. */
static void note_begin(StringInfo note, const native_intent *intent)
{
	const text *parts[] = {intent->tenant, intent->scope, intent->key};

	appendStringInfoString(note, "\x1e\x1f");
	for (int i = 0; i < 3; i++) {
		appendBinaryStringInfo(note, VARDATA_ANY(parts[i]), (int)VARSIZE_ANY_EXHDR(parts[i]));
		appendStringInfoChar(note, '\x1f');
	}
}

void native_note_start(const native_intent *intent, int32 fence)
{
	StringInfoData note;
	char *before = GetConfigOptionByName(NOTE, NULL, true);

	initStringInfo(&note);
	note_begin(&note, intent);
	appendStringInfo(&note, "%d", fence);
	if (before != NULL) {
		appendStringInfoChar(&note, '\x1f');
		appendStringInfoString(&note, before);
	}
	(void)set_config_option(NOTE, note.data, superuser() ? PGC_SUSET : PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL,
	                        true, 0, false);
	pfree(note.data);
}

int32 native_noted_start(const native_intent *intent)
{
	StringInfoData begin;
	char *notes = GetConfigOptionByName(NOTE, NULL, true);
	int64 fence = 0;

	if (notes == NULL || *notes == '\0') {
		return -1;
	}
	initStringInfo(&begin);
	note_begin(&begin, intent);
	const char *at = strstr(notes, begin.data);
	if (at == NULL) {
		return -1;
	}
	at += begin.len;
	if (*at < '0' || *at > '9') {
		return -1;
	}
	while (*at >= '0' && *at <= '9' && fence <= PG_INT32_MAX) {
		fence = fence * 10 + (*at++ - '0');
	}
	return (*at == '\x1f' || *at == '\0') && fence <= PG_INT32_MAX ? (int32)fence : -1;
}

/* To be asked as the contract's owner, who may read the sequence. */
int32 native_first_fence(const native_contract *contract)
{
	LOCAL_FCINFO(call, 1);
	FmgrInfo function;

	fmgr_info(F_PG_SEQUENCE_LAST_VALUE, &function);
	InitFunctionCallInfoData(*call, &function, 1, InvalidOid, NULL, NULL);
	call->args[0].value = ObjectIdGetDatum(contract->fence_floor);
	call->args[0].isnull = false;
	Datum last = FunctionCallInvoke(call);
	return call->isnull ? 1 : (int32)DatumGetInt64(last) + 1;
}

bool native_day_has_begun(int32 bucket, TimestampTz now)
{
	const int64 days_to_2000 = POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE;
	return now > 0 && bucket <= now / USECS_PER_DAY + days_to_2000;
}
