/* SPDX-License-Identifier: PostgreSQL
 * An intent's lock and its row: once._lock_id, _first_fence and _is_open, the look-up, the INSERT
 * and the UPDATE of the functions that decide, and once._policy's lease. */
#include "native.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_opfamily.h"
#include "catalog/pg_sequence.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "common/hashfn.h"
#include "executor/executor.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#define LOCK_SEED 20778
#define EVENT_LOCK_SEED 20779
#define STEPS_MAX 4 /* see native_search_begin */
#define PATIENCE 16

/* As hash_array_extended computes it, element by element. */
static uint64 hash_on(uint64 hash, const text *of, uint64 seed)
{
	return (hash << 5) - hash +
	       DatumGetUInt64(hash_any_extended((const unsigned char *)VARDATA_ANY(of), (int)VARSIZE_ANY_EXHDR(of), seed));
}

static uint64 names_hash(const native_intent *intent, uint64 seed)
{
	return hash_on(hash_on(hash_on(1, intent->tenant, seed), intent->scope, seed), intent->key, seed);
}

/* See once._lock_id. */
uint64 native_lock_number(const native_intent *intent)
{
	return names_hash(intent, LOCK_SEED);
}

/* See once._event_lock. */
uint64 native_event_lock_number(const native_intent *intent, const text *kind)
{
	return hash_on(names_hash(intent, EVENT_LOCK_SEED), kind, EVENT_LOCK_SEED);
}

static void set_tag(LOCKTAG *tag, uint64 id)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32)(id >> 32), (uint32)id, 1);
}

/* pg_try_advisory_xact_lock */
bool native_lock_id(uint64 id)
{
	LOCKTAG tag;

	set_tag(&tag, id);
	return LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

/* The same for an intent; or only asks whether this backend holds it. */
bool native_lock(native_intent *intent, bool held_already)
{
	intent->lock = native_lock_number(intent);
	if (held_already) {
		LOCKTAG tag;
		set_tag(&tag, intent->lock);
#if PG_VERSION_NUM >= 170000
		return LockHeldByMe(&tag, ExclusiveLock, false);
#else
		return LockHeldByMe(&tag, ExclusiveLock);
#endif
	}
	return native_lock_id(intent->lock);
}

/* Whether an index is a B-tree of so many columns that begin with these, texts in byte order. */
static bool is_key(Oid index_id, int columns, const AttrNumber *first, int count)
{
	Relation index = index_open(index_id, AccessShareLock);
	Form_pg_index form = index->rd_index;
	bool is = form->indisunique && form->indisvalid && form->indislive && form->indnkeyatts == columns &&
	          index->rd_rel->relam == BTREE_AM_OID;
	for (int i = 0; is && i < count; i++) {
		is = form->indkey.values[i] == first[i] && index->rd_opfamily[i] == TEXT_BTREE_FAM_OID &&
		     index->rd_indcollation[i] == C_COLLATION_OID;
	}
	index_close(index, NoLock);
	return is;
}

/* A table of the contract that is looked up by names: its primary key has so many columns and
 * begins with these. It is opened and locked; NULL if it is not as the contract creates it. */
static Relation table_of_names(const native_contract *contract, Oid id, Oid *primary_key, int columns,
                               const char *const *names, int count)
{
	Relation table = try_relation_open(id, AccessShareLock);
	AttrNumber numbers[INDEX_MAX_KEYS];

	if (table == NULL) {
		return NULL;
	}
	list_free(RelationGetIndexList(table));
	*primary_key = table->rd_pkindex;
	bool fits = table->rd_rel->relkind == RELKIND_RELATION && table->rd_rel->relam == HEAP_TABLE_AM_OID &&
	            table->rd_rel->relowner == contract->owner && !table->rd_rel->relrowsecurity &&
	            !table->rd_rel->relforcerowsecurity && OidIsValid(*primary_key);
	for (int i = 0; fits && i < count; i++) {
		numbers[i] = get_attnum(id, names[i]);
		fits = numbers[i] > 0 && TupleDescAttr(RelationGetDescr(table), numbers[i] - 1)->atttypid == TEXTOID &&
		       TupleDescAttr(RelationGetDescr(table), numbers[i] - 1)->attcollation == C_COLLATION_OID;
	}
	if (!fits || !is_key(*primary_key, columns, numbers, count)) {
		table_close(table, NoLock);
		return NULL;
	}
	return table;
}

/* A copy of the first row that an index has for these keys, or NULL. */
HeapTuple native_look_up(Relation table, Oid index_id, ScanKey keys, int count, Snapshot snapshot)
{
	HeapTuple copy = NULL;
	Relation index = index_open(index_id, AccessShareLock);
#if PG_VERSION_NUM >= 180000
	IndexScanDesc scan = index_beginscan(table, index, snapshot, NULL, count, 0);
#else
	IndexScanDesc scan = index_beginscan(table, index, snapshot, count, 0);
#endif
	index_rescan(scan, keys, count, NULL, 0);
	if (index_getnext_tid(scan, ForwardScanDirection) != NULL) {
		TupleTableSlot *slot = table_slot_create(table, NULL);
		if (index_fetch_heap(scan, slot) || index_getnext_slot(scan, ForwardScanDirection, slot)) {
			copy = ExecCopySlotHeapTuple(slot);
		}
		ExecDropSingleTupleTableSlot(slot);
	}
	index_endscan(scan);
	index_close(index, NoLock);
	return copy;
}

void native_key_of_text(ScanKey key, AttrNumber column, text *value)
{
	ScanKeyEntryInitialize(key, 0, column, BTEqualStrategyNumber, InvalidOid, C_COLLATION_OID, F_TEXTEQ,
	                       PointerGetDatum(value));
}

/* An intent's primary key without the bucket, which is the same in a whole partition. */
#define KEYS 3
static void keys_of(ScanKeyData *keys, const native_intent *intent)
{
	native_key_of_text(&keys[0], 1, intent->scope);
	native_key_of_text(&keys[1], 2, intent->key);
	native_key_of_text(&keys[2], 3, intent->tenant);
}

struct native_search {
	Relation index;
	TupleTableSlot *slot;
	IndexScanDesc scan;
	ScanKeyData keys[3];
	AttrNumber key_column, tenant_column;
	text *lowest;      /* lowest of all tenants */
	const text *scope; /* that the scan is in; NULL: none yet */
	bool has_row;      /* the slot has the next row of the index */
	int patience;      /* how many unwanted rows may still be skipped */
};

/* For a batch's look-ups, of one tenant and bucket, in the order of native_intent_order, with one
 * registered snapshot. Keys made together are next to each other in the index: the scan goes on
 * from one to the next, and starts again only if there is much in between. */
native_search *native_search_begin(native_tables *tables, Snapshot snapshot)
{
	native_search *search = palloc0(sizeof *search);

	search->index = index_open(tables->known.primary_key, AccessShareLock);
	search->slot = table_slot_create(tables->leaf, NULL);
	search->key_column = tables->known.columns[COLUMN_KEY];
	search->tenant_column = tables->known.columns[COLUMN_TENANT];
	search->lowest = cstring_to_text("");
	search->patience = PATIENCE;
#if PG_VERSION_NUM >= 180000
	search->scan = index_beginscan(tables->leaf, search->index, snapshot, NULL, lengthof(search->keys), 0);
#else
	search->scan = index_beginscan(tables->leaf, search->index, snapshot, lengthof(search->keys), 0);
#endif
	return search;
}

static void search_step(native_search *search)
{
	search->has_row = index_getnext_slot(search->scan, ForwardScanDirection, search->slot);
}

/* Starts again at the place where this intent is, or would be. */
static void search_anew(native_search *search, const native_intent *intent)
{
	bool exactly = search->patience <= 0;

	native_key_of_text(&search->keys[0], 1, intent->scope);
	native_key_of_text(&search->keys[1], 2, intent->key);
	native_key_of_text(&search->keys[2], 3, exactly ? intent->tenant : search->lowest);
	/* Other tenants' rows are skipped here, and counted. */
	for (int i = 1; !exactly && i < 3; i++) {
		search->keys[i].sk_strategy = BTGreaterEqualStrategyNumber;
		fmgr_info(F_TEXT_GE, &search->keys[i].sk_func);
	}
	index_rescan(search->scan, search->keys, lengthof(search->keys), NULL, 0);
	search->scope = intent->scope;
	search_step(search);
}

static int bytes_order(const text *one, const text *other)
{
	size_t one_bytes = VARSIZE_ANY_EXHDR(one), other_bytes = VARSIZE_ANY_EXHDR(other);
	int order = memcmp(VARDATA_ANY(one), VARDATA_ANY(other), Min(one_bytes, other_bytes));

	return order != 0 ? order : one_bytes < other_bytes ? -1 : one_bytes > other_bytes;
}

/* By scope and key, the index's order. */
int native_intent_order(const native_intent *one, const native_intent *other)
{
	int order = one->scope == other->scope ? 0 : bytes_order(one->scope, other->scope);

	return order != 0 ? order : bytes_order(one->key, other->key);
}

/* Compares the key and the tenant of the next row with this one's. */
static int search_order(native_search *search, const native_intent *intent)
{
	bool is_null;
	Datum found = slot_getattr(search->slot, search->key_column, &is_null);
	int order = is_null ? -1 : bytes_order(DatumGetTextPP(found), intent->key);

	if (order == 0) {
		found = slot_getattr(search->slot, search->tenant_column, &is_null);
		order = is_null ? -1 : bytes_order(DatumGetTextPP(found), intent->tenant);
	}
	return order;
}

/* The intent's row, valid until the next look-up; NULL: none. */
TupleTableSlot *native_search_next(native_search *search, const native_intent *intent)
{
	int order = -1;

	if (search->patience > 0 && search->scope != NULL && native_same_bytes(search->scope, intent->scope)) {
		if (search->has_row) {
			order = search_order(search, intent);
		}
		for (int steps = 0; search->has_row && order < 0 && steps < STEPS_MAX; steps++) {
			search_step(search);
			order = search->has_row ? search_order(search, intent) : -1;
			search->patience -= search->has_row && order < 0;
		}
		if (!search->has_row) { /* it was the last of this scope */
			return NULL;
		}
	}
	if (order < 0) {
		search_anew(search, intent);
		order = search->has_row ? search_order(search, intent) : -1;
		if (search->has_row && order < 0) { /* other tenants have that key, perhaps many */
			search->patience = 0;
			search_anew(search, intent);
			order = search->has_row ? search_order(search, intent) : -1;
		}
	}
	return order == 0 ? search->slot : NULL;
}

void native_search_end(native_search *search)
{
	index_endscan(search->scan);
	ExecDropSingleTupleTableSlot(search->slot);
	index_close(search->index, NoLock);
	pfree(search);
}

/* A copy of the intent's row, or NULL. */
HeapTuple native_look(native_tables *tables, const native_intent *intent, Snapshot snapshot)
{
	ScanKeyData keys[KEYS];

	keys_of(keys, intent);
	return native_look_up(tables->leaf, tables->known.primary_key, keys, KEYS, snapshot);
}

/* The same among committed and uncommitted rows; changing: another transaction is changing it. */
HeapTuple native_look_dirty(native_tables *tables, const native_intent *intent, bool *changing)
{
	SnapshotData dirty;

	InitDirtySnapshot(dirty);
	HeapTuple row = native_look(tables, intent, &dirty);
	*changing = row != NULL && (TransactionIdIsValid(dirty.xmin) || TransactionIdIsValid(dirty.xmax));
	return row;
}

/* The lease of a scope's policy, as once._policy finds it; NULL if its table is not as the contract
 * creates it. */
const Interval *native_lease(const native_contract *contract, text *scope)
{
	static const char *const names[] = {"scope"};
	Interval *lease = NULL;
	Oid primary_key;
	Relation table = table_of_names(contract, contract->scope, &primary_key, 1, names, lengthof(names));

	if (table == NULL) {
		return NULL;
	}
	AttrNumber column = get_attnum(RelationGetRelid(table), "lease");
	if (column > 0 && TupleDescAttr(RelationGetDescr(table), column - 1)->atttypid == INTERVALOID) {
		Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
		ScanKeyData key;
		native_key_of_text(&key, 1, scope);
		HeapTuple row = native_look_up(table, primary_key, &key, 1, snapshot);
		if (row == NULL) {
			native_key_of_text(&key, 1, cstring_to_text(""));
			row = native_look_up(table, primary_key, &key, 1, snapshot);
		}
		if (row != NULL) {
			bool is_null;
			Datum value = heap_getattr(row, column, RelationGetDescr(table), &is_null);
			lease = is_null ? NULL : DatumGetIntervalP(value); /* points into the copy */
		}
		UnregisterSnapshot(snapshot);
	}
	table_close(table, NoLock);
	return lease;
}

/* Whether no message of this consumer and tenant is parked; false also if the table is not as the
 * contract creates it. */
bool native_nothing_is_parked(const native_contract *contract, text *consumer, text *tenant)
{
	static const char *const names[] = {"consumer", "tenant"};
	ScanKeyData keys[lengthof(names)];
	Oid primary_key;
	Relation table = table_of_names(contract, contract->parked_message, &primary_key, 3, names, lengthof(names));

	if (table == NULL) {
		return false;
	}
	native_key_of_text(&keys[0], 1, consumer);
	native_key_of_text(&keys[1], 2, tenant);
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	HeapTuple row = native_look_up(table, primary_key, keys, lengthof(keys), snapshot);
	UnregisterSnapshot(snapshot);
	table_close(table, NoLock);
	if (row != NULL) {
		heap_freetuple(row);
	}
	return row == NULL;
}

Datum native_column_get(native_tables *tables, HeapTuple row, int column, bool *is_null)
{
	return heap_getattr(row, tables->known.columns[column], RelationGetDescr(tables->leaf), is_null);
}

/* The intent that start last looked for and did not find. It saves finish a second look, and is
 * only a hint: native_insert notices a row that has come since. But it notices it by a row that it
 * deletes again, and a reader of logical decoding would see a key twice: with logical decoding,
 * finish looks. */
static struct {
	uint64 lock;
	LocalTransactionId transaction;
} absent;

static LocalTransactionId this_transaction(void)
{
#if PG_VERSION_NUM >= 170000
	return MyProc->vxid.lxid;
#else
	return MyProc->lxid;
#endif
}

void native_remember_absent(const native_intent *intent)
{
	absent.lock = intent->lock;
	absent.transaction = this_transaction();
}

bool native_was_absent(const native_intent *intent, const native_tables *tables)
{
	return absent.lock == intent->lock && absent.transaction == this_transaction() &&
	       !RelationIsLogicallyLogged(tables->leaf);
}

void native_forget_absent(void)
{
	absent.transaction = InvalidLocalTransactionId;
}

/* One row, whose key was looked for under the intent's lock. The table has nothing else that an
 * INSERT handles (triggers, CHECKs, rules, row security, other indexes): native_leaf_find has
 * checked that, and the lock on the table keeps it so. False if the index has a row with this key
 * nevertheless, from any transaction that was not rolled back: it does not wait, and this row is
 * deleted again, so that SQL decides. */
bool native_insert(native_tables *tables, const Datum *values, const bool *nulls)
{
	Datum row[NATTS_MAX];
	bool row_nulls[NATTS_MAX];
	int natts = tables->known.natts;
	Relation leaf = tables->leaf, index = index_open(tables->known.primary_key, RowExclusiveLock);
	IndexInfo *about = BuildIndexInfo(index);
	Datum key[] = {values[COLUMN_SCOPE], values[COLUMN_KEY], values[COLUMN_TENANT], values[COLUMN_BUCKET]};
	bool key_nulls[lengthof(key)] = {false};

	native_forget_absent();
	memset(row, 0, sizeof(Datum) * (size_t)natts);
	memset(row_nulls, true, sizeof(bool) * (size_t)natts);
	for (int i = 0; i < COLUMN_COUNT; i++) {
		int at = tables->known.columns[i] - 1;
		row[at] = values[i];
		row_nulls[at] = nulls[i];
	}
	HeapTuple tuple = heap_form_tuple(RelationGetDescr(leaf), row, row_nulls);
	simple_heap_insert(leaf, tuple);
#if PG_VERSION_NUM >= 140000
	bool single = index_insert(index, key, key_nulls, &tuple->t_self, leaf, UNIQUE_CHECK_PARTIAL, false, about);
#else
	bool single = index_insert(index, key, key_nulls, &tuple->t_self, leaf, UNIQUE_CHECK_PARTIAL, about);
#endif
#if PG_VERSION_NUM >= 170000
	index_insert_cleanup(index, about);
#endif
	index_close(index, NoLock);
	if (!single) {
		CommandCounterIncrement();
		simple_heap_delete(leaf, &tuple->t_self);
	}
	heap_freetuple(tuple);
	CommandCounterIncrement();
	return single;
}

struct native_updating {
	native_tables *tables;
	TupleTableSlot *slot;
	Relation index; /* NULL as long as all are HOT */
	IndexInfo *about;
};

native_updating *native_updating_begin(native_tables *tables)
{
	native_updating *updating = palloc0(sizeof *updating);

	/* Raises the error of an UPDATE if a publication cannot identify the row. */
	CheckCmdReplicaIdentity(tables->leaf, CMD_UPDATE);
	updating->tables = tables;
	updating->slot = MakeSingleTupleTableSlot(RelationGetDescr(tables->leaf), &TTSOpsHeapTuple);
	return updating;
}

/* Stores another version of a row just looked at, like an UPDATE. False: another transaction has
 * changed it since, and nothing is done. Waits for a transaction that is changing it, like an
 * UPDATE. */
bool native_updating_next(native_updating *updating, const native_stored *row, const native_row *changed,
                          const bool *replaces)
{
	native_tables *tables = updating->tables;
	Relation leaf = tables->leaf;
	TupleTableSlot *slot = updating->slot;
	TupleDesc shape = RelationGetDescr(leaf);
	Datum set[NATTS_MAX];
	bool set_nulls[NATTS_MAX];
	TM_FailureData failure;
	LockTupleMode mode;
#if PG_VERSION_NUM >= 160000
	TU_UpdateIndexes indexes = TU_None;
	const TU_UpdateIndexes all = TU_All;
#else
	bool indexes = false;
	const bool all = true;
#endif

	memcpy(set, row->values, sizeof *set * (size_t)shape->natts);
	memcpy(set_nulls, row->nulls, sizeof *set_nulls * (size_t)shape->natts);
	for (int i = 0; i < COLUMN_COUNT; i++) {
		if (replaces[i]) {
			int at = tables->known.columns[i] - 1;
			set[at] = changed->values[i];
			set_nulls[at] = changed->nulls[i];
		}
	}
	ExecStoreHeapTuple(heap_form_tuple(shape, set, set_nulls), slot, true);
	ItemPointerData at = *row->at;
	TM_Result done = table_tuple_update(leaf, &at, slot, GetCurrentCommandId(true), InvalidSnapshot, InvalidSnapshot,
	                                    true, &failure, &mode, &indexes);
	if (done == TM_Ok && indexes == all) { /* else it is HOT */
		if (updating->index == NULL) {
			updating->index = index_open(tables->known.primary_key, RowExclusiveLock);
			updating->about = BuildIndexInfo(updating->index);
		}
		Relation index = updating->index;
		Datum keys[INDEX_MAX_KEYS];
		bool keys_null[INDEX_MAX_KEYS];
		FormIndexDatum(updating->about, slot, NULL, keys, keys_null);
#if PG_VERSION_NUM >= 140000
		(void)index_insert(index, keys, keys_null, &slot->tts_tid, leaf, UNIQUE_CHECK_YES, true, updating->about);
#else
		(void)index_insert(index, keys, keys_null, &slot->tts_tid, leaf, UNIQUE_CHECK_YES, updating->about);
#endif
	}
	return done == TM_Ok;
}

void native_updating_end(native_updating *updating)
{
	if (updating->index != NULL) {
#if PG_VERSION_NUM >= 170000
		index_insert_cleanup(updating->index, updating->about);
#endif
		index_close(updating->index, NoLock);
	}
	ExecDropSingleTupleTableSlot(updating->slot);
	pfree(updating);
}

/* One row only; the change is visible at once. */
bool native_update(native_tables *tables, const native_stored *row, const native_row *changed, const bool *replaces)
{
	native_updating *updating = native_updating_begin(tables);
	bool done = native_updating_next(updating, row, changed, replaces);

	native_updating_end(updating);
	if (done) {
		CommandCounterIncrement();
	}
	return done;
}

/* pg_sequence_last_value. Call it as the contract's owner, who may read the sequence. */
Datum native_last_value(Oid sequence, bool *is_null)
{
	LOCAL_FCINFO(call, 1);
	FmgrInfo function;

	fmgr_info(F_PG_SEQUENCE_LAST_VALUE, &function);
	InitFunctionCallInfoData(*call, &function, 1, InvalidOid, NULL, NULL);
	call->args[0].value = ObjectIdGetDatum(sequence);
	call->args[0].isnull = false;
	Datum last = FunctionCallInvoke(call);
	*is_null = call->isnull;
	return last;
}

/* Raises a sequence by so much in one step, if as many nextval calls would do only that: its page
 * holds everything, since nothing of it is logged and no session caches its values. It costs half
 * of one nextval. */
static bool raise_at_once(Oid sequence, int64 by)
{
#if PG_VERSION_NUM >= 150000
	ResourceOwner here = CurrentResourceOwner;

	/* Until the transaction ends, even if a savepoint is rolled back, like nextval. */
	CurrentResourceOwner = TopTransactionResourceOwner;
	LockRelationOid(sequence, RowExclusiveLock);
	CurrentResourceOwner = here;
	Relation relation = relation_open(sequence, NoLock);
	HeapTuple tuple = SearchSysCache1(SEQRELID, ObjectIdGetDatum(sequence));
	bool plain = false;
	int64 most = 0;

	if (HeapTupleIsValid(tuple)) {
		Form_pg_sequence form = (Form_pg_sequence)GETSTRUCT(tuple);
		plain = form->seqincrement == 1 && form->seqcache == 1;
		most = form->seqmax - by;
		ReleaseSysCache(tuple);
	}
	if (plain && relation->rd_rel->relpersistence == RELPERSISTENCE_UNLOGGED) {
		Buffer buffer = ReadBuffer(relation, 0);
		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
		Page page = BufferGetPage(buffer);
		HeapTupleHeader row = (HeapTupleHeader)PageGetItem(page, PageGetItemId(page, FirstOffsetNumber));
		Form_pg_sequence_data data = (Form_pg_sequence_data)((char *)row + row->t_hoff);
		plain = data->is_called && data->last_value <= most;
		if (plain) {
			MarkBufferDirty(buffer);
			data->last_value += by;
		}
		UnlockReleaseBuffer(buffer);
	} else {
		plain = false;
	}
	relation_close(relation, NoLock);
	return plain;
#else
	return false;
#endif
}

/* Counts like nextval. */
void native_count(Oid counter, int times)
{
	if (!raise_at_once(counter, times)) {
		for (int i = 0; i < times; i++) {
			(void)nextval_internal(counter, false);
		}
	}
}

int32 native_first_fence(const native_contract *contract)
{
	bool is_null;
	Datum last = native_last_value(contract->fence_floor, &is_null);

	return is_null ? 1 : (int32)DatumGetInt64(last) + 1;
}

bool native_day_has_begun(int32 bucket, TimestampTz now)
{
	const int64 days_to_2000 = POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE;
	return now > 0 && bucket <= now / USECS_PER_DAY + days_to_2000;
}
