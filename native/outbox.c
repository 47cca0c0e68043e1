/* SPDX-License-Identifier: PostgreSQL
 * The plain path of once.emit: a new event of today, which no day has, if the clock has not gone
 * backwards. See attempt.c. */
#include "native.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_opfamily.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "nodes/primnodes.h"
#include "partitioning/partbounds.h"
#include "partitioning/partdesc.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/inval.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/partcache.h"
#include "utils/snapmgr.h"
#include "utils/uuid.h"
#include "utils/xid8.h"

#define NAMES_MAX 255            /* topic and event_type together: see once.emit */
#define PAYLOAD_BYTES_PLAIN 8192 /* see once.emit */
#define CURRENT_XACT_ID_OID 5059 /* pg_current_xact_id(); named differently in 13 */
#define DAYS_KNOWN 32            /* today and the earlier days that are looked at; with more: SQL */

enum emit_argument {
	EMIT_TOPIC,
	EMIT_PAYLOAD,
	EMIT_AGGREGATE_TYPE,
	EMIT_AGGREGATE_ID,
	EMIT_EVENT_TYPE,
	EMIT_SCOPE,
	EMIT_KEY,
	EMIT_HEADERS,
	EMIT_TENANT,
	EMIT_TRACEPARENT
};

/* The columns of once.outbox, in the order of their declaration in contract/outbox/tables.sql. */
enum event_column {
	EVENT_ID,
	EVENT_DAY,
	EVENT_XID,
	EVENT_CREATED_AT,
	EVENT_EVENT_ID,
	EVENT_TOPIC,
	EVENT_EVENT_TYPE,
	EVENT_AGGREGATE_TYPE,
	EVENT_AGGREGATE_ID,
	EVENT_TENANT,
	EVENT_SCOPE,
	EVENT_KEY,
	EVENT_TRACEPARENT,
	EVENT_HEADERS,
	EVENT_PAYLOAD,
	EVENT_PAYLOAD_BYTES,
	EVENT_CONTENT_TYPE,
	EVENT_COUNT
};

static const struct {
	const char *name;
	Oid type;
	bool required;
} columns[EVENT_COUNT] = {
    [EVENT_ID] = {"id", INT8OID, true},
    [EVENT_DAY] = {"day", INT4OID, true},
    [EVENT_XID] = {"xid", XID8OID, true},
    [EVENT_CREATED_AT] = {"created_at", TIMESTAMPTZOID, true},
    [EVENT_EVENT_ID] = {"event_id", UUIDOID, true},
    [EVENT_TOPIC] = {"topic", TEXTOID, true},
    [EVENT_EVENT_TYPE] = {"event_type", TEXTOID, true},
    [EVENT_AGGREGATE_TYPE] = {"aggregate_type", TEXTOID, false},
    [EVENT_AGGREGATE_ID] = {"aggregate_id", TEXTOID, false},
    [EVENT_TENANT] = {"tenant", TEXTOID, true},
    [EVENT_SCOPE] = {"scope", TEXTOID, false},
    [EVENT_KEY] = {"key", TEXTOID, false},
    [EVENT_TRACEPARENT] = {"traceparent", TEXTOID, false},
    [EVENT_HEADERS] = {"headers", JSONBOID, false},
    [EVENT_PAYLOAD] = {"payload", JSONBOID, true},
    [EVENT_PAYLOAD_BYTES] = {"payload_bytes", BYTEAOID, false},
    [EVENT_CONTENT_TYPE] = {"content_type", TEXTOID, false},
};

/* A partition of once.outbox. */
typedef struct outbox_leaf {
	Oid relation; /* InvalidOid: nothing known */
	Oid single;   /* the index that makes an intent's event unique */
	Oid ordered;  /* the other index */
	Oid sequence; /* of the ids */
	int32 day;
	int natts;
	AttrNumber columns[EVENT_COUNT];
} outbox_leaf;

static outbox_leaf leaves[DAYS_KNOWN]; /* that of a day is at its number modulo DAYS_KNOWN */
static Oid last_outbox;                /* their parent */

static void relation_changed(Datum unused, Oid relation)
{
	bool is_each = !OidIsValid(relation) || relation == last_outbox;

	(void)unused;
	for (int i = 0; i < DAYS_KNOWN; i++) {
		outbox_leaf *leaf = &leaves[i];
		if (is_each || relation == leaf->relation || relation == leaf->single || relation == leaf->ordered ||
		    relation == leaf->sequence) {
			leaf->relation = InvalidOid;
		}
	}
}

void native_outbox_init(void)
{
	CacheRegisterRelcacheCallback(relation_changed, (Datum)0);
}

/* Whether the parent is as the contract creates it: partitioned by day, ids from a sequence, xid by
 * default the transaction's. */
static bool outbox_fits(const native_contract *contract, Relation outbox, Oid *sequence)
{
	Oid id = RelationGetRelid(outbox);
	TupleDesc shape = RelationGetDescr(outbox);
	AttrNumber number = get_attnum(id, "id"), xid = get_attnum(id, "xid");
	bool fits = false;

	if (outbox->rd_rel->relkind != RELKIND_PARTITIONED_TABLE || outbox->rd_rel->relowner != contract->owner ||
	    number <= 0 || xid <= 0 || TupleDescAttr(shape, number - 1)->attidentity == '\0' || shape->constr == NULL ||
	    shape->constr->num_check > 0) {
		return native_refuse("once.outbox is not as the contract creates it");
	}
	PartitionKey key = RelationGetPartitionKey(outbox);
	if (key->strategy != PARTITION_STRATEGY_RANGE || key->partnatts != 1 ||
	    key->partattrs[0] != get_attnum(id, "day")) {
		return native_refuse("once.outbox is not partitioned by day");
	}
	/* The parent's defaults apply. Any other default would have to be computed. */
	for (int i = 0; i < shape->constr->num_defval; i++) {
		if (shape->constr->defval[i].adnum != xid) {
			return native_refuse("a column of once.outbox has a default");
		}
		Node *value = stringToNode(shape->constr->defval[i].adbin);
		fits = IsA(value, FuncExpr) && ((FuncExpr *)value)->funcid == CURRENT_XACT_ID_OID;
	}
#if PG_VERSION_NUM >= 170000
	*sequence = getIdentitySequence(outbox, number, true);
#else
	*sequence = getIdentitySequence(id, number, true);
#endif
	return (fits && OidIsValid(*sequence)) || native_refuse("once.outbox is not as the contract creates it");
}

/* Whether the unique index has the columns, in order, by which an event is looked up. */
static bool is_single(Relation index, const outbox_leaf *leaf)
{
	static const int keys[] = {EVENT_TENANT, EVENT_SCOPE, EVENT_KEY, EVENT_EVENT_TYPE, EVENT_DAY};
	Form_pg_index form = index->rd_index;

	if (!form->indisunique || !native_is_plain_index(index, (int)lengthof(keys))) {
		return false;
	}
#if PG_VERSION_NUM >= 150000
	if (form->indnullsnotdistinct) {
		return false;
	}
#endif
	for (size_t i = 0; i < lengthof(keys); i++) {
		bool is_text = columns[keys[i]].type == TEXTOID;
		if (form->indkey.values[i] != leaf->columns[keys[i]] || index->rd_indoption[i] != 0 ||
		    index->rd_opfamily[i] != (is_text ? TEXT_BTREE_FAM_OID : INTEGER_BTREE_FAM_OID) ||
		    (is_text && index->rd_indcollation[i] != C_COLLATION_OID)) {
			return false;
		}
	}
	return true;
}

/* Learns a day's partition, which the caller has opened and locked, as well as its parent. */
static bool leaf_learn(const native_contract *contract, Relation outbox, Relation relation, int32 day,
                       outbox_leaf *leaf)
{
	TupleDesc shape = RelationGetDescr(relation);
	char name[NAMEDATALEN];
	int found = 0;

	memset(leaf, 0, sizeof *leaf);
	snprintf(name, sizeof name, "outbox_d%d", day);
	if (!native_is_leaf(contract, relation, contract->outbox, name, day) ||
	    !outbox_fits(contract, outbox, &leaf->sequence)) {
		return false;
	}
	for (int i = 0; i < shape->natts; i++) {
		Form_pg_attribute attribute = TupleDescAttr(shape, i);
		if (attribute->attisdropped) {
			continue;
		}
		int column = 0;
		while (column < EVENT_COUNT && strcmp(NameStr(attribute->attname), columns[column].name) != 0) {
			column++;
		}
		if (column == EVENT_COUNT || attribute->atttypid != columns[column].type ||
		    attribute->attnotnull != columns[column].required || attribute->attgenerated != '\0' ||
		    (attribute->atttypid == TEXTOID && attribute->attcollation != C_COLLATION_OID)) {
			return native_refuse("%s has the column %s, which the contract lacks or defines differently", name,
			                     NameStr(attribute->attname));
		}
		leaf->columns[column] = attribute->attnum;
		found++;
	}
	List *indexes = RelationGetIndexList(relation);
	if (found != EVENT_COUNT || list_length(indexes) != 2) {
		return native_refuse("%s has %d columns of the contract and %d indexes, but the contract's has %d and 2", name,
		                     found, list_length(indexes), EVENT_COUNT);
	}
	ListCell *cell;
	foreach (cell, indexes) {
		Relation index = index_open(lfirst_oid(cell), AccessShareLock);
		if (is_single(index, leaf)) {
			leaf->single = RelationGetRelid(index);
		} else if (!index->rd_index->indisunique && native_is_plain_index(index, 2)) {
			leaf->ordered = RelationGetRelid(index);
		}
		index_close(index, NoLock);
	}
	leaf->relation = RelationGetRelid(relation);
	leaf->day = day;
	leaf->natts = shape->natts;
	return (OidIsValid(leaf->single) && OidIsValid(leaf->ordered)) ||
	       native_refuse("the indexes of %s are not the contract's", name);
}

/* A day's partition, opened and locked for reading, and what is known of it; NULL if it is not
 * plain. */
static Relation leaf_open(const native_contract *contract, Relation outbox, int32 day, outbox_leaf *leaf)
{
	outbox_leaf *slot = &leaves[day % DAYS_KNOWN];
	bool known = last_outbox == contract->outbox && slot->day == day && OidIsValid(slot->relation);
	Oid id = slot->relation;

	if (!known) {
		char name[NAMEDATALEN];
		snprintf(name, sizeof name, "outbox_d%d", day);
		id = get_relname_relid(name, contract->schema);
	}
	Relation relation = OidIsValid(id) ? try_relation_open(id, AccessShareLock) : NULL;
	if (relation == NULL) {
		(void)native_refuse("there is no table outbox_d%d", day);
		return NULL;
	}
	bool fits = true;
	/* Taking the lock brings other sessions' changes. */
	if (known && slot->relation == id && slot->day == day) {
		*leaf = *slot;
	} else {
		uint64 then = native_changes();
		MemoryContext own = AllocSetContextCreate(CurrentMemoryContext, "pgonce_native", ALLOCSET_SMALL_SIZES);
		MemoryContext before = MemoryContextSwitchTo(own);
		fits = leaf_learn(contract, outbox, relation, day, leaf);
		MemoryContextSwitchTo(before);
		MemoryContextDelete(own);
		if (fits && then == native_changes()) {
			if (last_outbox != contract->outbox) {
				memset(leaves, 0, sizeof leaves);
			}
			*slot = *leaf;
			last_outbox = contract->outbox;
		}
	}
	if (!fits || !native_still_known() || !native_is_bare(relation)) {
		table_close(relation, NoLock);
		return NULL;
	}
	return relation;
}

/* Whether the events' tables are as the contract creates them. */
bool native_outbox_fits(const native_contract *contract, int32 day)
{
	outbox_leaf leaf;
	char name[NAMEDATALEN];

	snprintf(name, sizeof name, "outbox_d%d", day);
	if (!OidIsValid(get_relname_relid(name, contract->schema))) {
		return true; /* the next call creates it */
	}
	Relation outbox = try_relation_open(contract->outbox, AccessShareLock);
	if (outbox == NULL) {
		return native_refuse("there is no table outbox");
	}
	Relation relation = native_is_bare(outbox) ? leaf_open(contract, outbox, day, &leaf) : NULL;
	if (relation != NULL) {
		table_close(relation, NoLock);
	}
	table_close(outbox, NoLock);
	return relation != NULL;
}

/* The days before this one that have a partition; -1: they are not days, or too many. */
static int earlier_days(Relation outbox, int32 day, int32 *days)
{
	int count = 0;
#if PG_VERSION_NUM >= 140000
	PartitionDesc all = RelationGetPartitionDesc(outbox, false);
#else
	PartitionDesc all = RelationGetPartitionDesc(outbox);
#endif
	PartitionBoundInfo bounds = all->boundinfo;

	if (all->nparts == 0 || bounds->strategy != PARTITION_STRATEGY_RANGE || bounds->default_index >= 0) {
		return -1;
	}
	for (int i = 0; i < bounds->ndatums; i++) {
		if (bounds->kind[i][0] != PARTITION_RANGE_DATUM_VALUE || DatumGetInt32(bounds->datums[i][0]) < 0) {
			return -1;
		}
		int32 from = DatumGetInt32(bounds->datums[i][0]);
		if (from >= day) {
			break;
		}
		if (bounds->indexes[i + 1] < 0) {
			continue; /* days without a partition */
		}
		if (count == DAYS_KNOWN - 1) {
			return -1;
		}
		days[count++] = from;
	}
	return count;
}

/* The id of an intent's event: see once.emit. NULL: not plain. */
static pg_uuid_t *event_id_of(const native_contract *contract, const native_intent *intent, text *kind)
{
	bytea *salt = native_salt_of(contract, intent->tenant);
	if (salt == NULL) {
		return NULL;
	}
	Datum names[] = {PointerGetDatum(intent->tenant), PointerGetDatum(intent->scope), PointerGetDatum(intent->key),
	                 PointerGetDatum(kind)};
	ArrayType *array = construct_array(names, lengthof(names), TEXTOID, -1, false, TYPALIGN_INT);
	text *written = cstring_to_text(OidOutputFunctionCall(F_ARRAY_OUT, PointerGetDatum(array)));
	StringInfoData hashed;
	initStringInfo(&hashed);
	appendStringInfoSpaces(&hashed, VARHDRSZ);
	appendBinaryStringInfo(&hashed, VARDATA_ANY(salt), (int)VARSIZE_ANY_EXHDR(salt));
	appendStringInfoChar(&hashed, 'e');
	appendBinaryStringInfo(&hashed, VARDATA_ANY(written), (int)VARSIZE_ANY_EXHDR(written));
	SET_VARSIZE(hashed.data, hashed.len);
	bytea *hash = DatumGetByteaPP(DirectFunctionCall1(sha256_bytea, PointerGetDatum(hashed.data)));
	pg_uuid_t *id = palloc(sizeof *id);

	memcpy(id->data, VARDATA_ANY(hash), UUID_LEN);
	id->data[6] = 0x80;
	id->data[7] = 0;
	id->data[8] = 0x80;
	return id;
}

static bool is_there(Relation relation, const outbox_leaf *leaf, const native_intent *intent, text *kind)
{
	ScanKeyData keys[5];
	SnapshotData dirty;

	InitDirtySnapshot(dirty);
	native_key_of_text(&keys[0], 1, intent->tenant);
	native_key_of_text(&keys[1], 2, intent->scope);
	native_key_of_text(&keys[2], 3, intent->key);
	native_key_of_text(&keys[3], 4, kind);
	ScanKeyEntryInitialize(&keys[4], 0, 5, BTEqualStrategyNumber, InvalidOid, InvalidOid, F_INT4EQ,
	                       Int32GetDatum(leaf->day));
	HeapTuple row = native_look_up(relation, leaf->single, keys, 5, &dirty);
	if (row != NULL) {
		heap_freetuple(row);
	}
	return row != NULL;
}

/* Whether an earlier day has the event, or may have it: its partition is not plain, or there are
 * many. A day that is being detached is not plain. */
static bool may_be_earlier(const native_contract *contract, Relation outbox, int32 day, const native_intent *intent,
                           text *kind)
{
	int32 days[DAYS_KNOWN];
	int count = earlier_days(outbox, day, days);

	for (int i = 0; i < count; i++) {
		outbox_leaf leaf;
		Relation relation = leaf_open(contract, outbox, days[i], &leaf);
		bool found = relation == NULL || is_there(relation, &leaf, intent, kind);
		if (relation != NULL) {
			table_close(relation, NoLock);
		}
		if (found) {
			return true;
		}
	}
	return count < 0;
}

/* The checks of an event's arguments. */
static bool event_is_plain(FunctionCallInfo fcinfo, text **topic, text **kind)
{
	if (PG_ARGISNULL(EMIT_TOPIC) || PG_ARGISNULL(EMIT_PAYLOAD) || PG_ARGISNULL(EMIT_SCOPE) != PG_ARGISNULL(EMIT_KEY)) {
		return false;
	}
	*topic = PG_GETARG_TEXT_PP(EMIT_TOPIC);
	*kind = PG_ARGISNULL(EMIT_EVENT_TYPE) ? *topic : PG_GETARG_TEXT_PP(EMIT_EVENT_TYPE);
	size_t topic_bytes = VARSIZE_ANY_EXHDR(*topic), kind_bytes = VARSIZE_ANY_EXHDR(*kind);
	return topic_bytes > 0 && kind_bytes > 0 && topic_bytes + kind_bytes <= NAMES_MAX &&
	       native_json_length(PG_GETARG_JSONB_P(EMIT_PAYLOAD)) <= PAYLOAD_BYTES_PLAIN &&
	       native_headers_are_plain(fcinfo->args[EMIT_HEADERS]);
}

static void event_insert(FunctionCallInfo fcinfo, Relation relation, const outbox_leaf *leaf, TimestampTz now,
                         const pg_uuid_t *event_id, text *kind)
{
	static const struct {
		int column;
		int argument;
	} passed[] = {{EVENT_TOPIC, EMIT_TOPIC},
	              {EVENT_AGGREGATE_TYPE, EMIT_AGGREGATE_TYPE},
	              {EVENT_AGGREGATE_ID, EMIT_AGGREGATE_ID},
	              {EVENT_TENANT, EMIT_TENANT},
	              {EVENT_SCOPE, EMIT_SCOPE},
	              {EVENT_KEY, EMIT_KEY},
	              {EVENT_HEADERS, EMIT_HEADERS},
	              {EVENT_PAYLOAD, EMIT_PAYLOAD}};
	Datum row[NATTS_MAX] = {0};
	bool nulls[NATTS_MAX];
	text *traceparent = native_trace(fcinfo, EMIT_TRACEPARENT);

	memset(nulls, true, sizeof nulls);
#define SET(column, value) (row[leaf->columns[column] - 1] = (value), nulls[leaf->columns[column] - 1] = false)
	SET(EVENT_ID, Int64GetDatum(nextval_internal(leaf->sequence, false)));
	SET(EVENT_DAY, Int32GetDatum(leaf->day));
	SET(EVENT_XID, FullTransactionIdGetDatum(GetTopFullTransactionId()));
	SET(EVENT_CREATED_AT, TimestampTzGetDatum(now));
	SET(EVENT_EVENT_ID, UUIDPGetDatum(event_id));
	SET(EVENT_EVENT_TYPE, PointerGetDatum(kind));
	if (traceparent != NULL) {
		SET(EVENT_TRACEPARENT, PointerGetDatum(traceparent));
	}
	for (size_t i = 0; i < lengthof(passed); i++) {
		if (!PG_ARGISNULL(passed[i].argument)) {
			SET(passed[i].column, PG_GETARG_DATUM(passed[i].argument));
		}
	}
#undef SET
	HeapTuple tuple = heap_form_tuple(RelationGetDescr(relation), row, nulls);
	CatalogTupleInsert(relation, tuple);
	heap_freetuple(tuple);
	CommandCounterIncrement();
}

/* Days since 1970, for a time after 2000. */
int32 native_day(TimestampTz now)
{
	return (int32)(now / USECS_PER_DAY) + POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE;
}

bool native_do_emit(FunctionCallInfo fcinfo, const native_contract *contract, Datum *result)
{
	native_intent intent;
	outbox_leaf leaf;
	text *topic, *kind;
	pg_uuid_t *event_id = NULL;
	bool of_intent = !PG_ARGISNULL(EMIT_KEY), plain = false;

	if (!native_quick_check(fcinfo, contract, &intent, of_intent ? EMIT_SCOPE : -1, -1, EMIT_TENANT) ||
	    !event_is_plain(fcinfo, &topic, &kind)) {
		return false;
	}
	TimestampTz now = GetCurrentTimestamp();
	if (now <= 0) {
		return false;
	}
	int32 day = native_day(now);
	CommandCounterIncrement();
	Relation outbox = native_has_next_day(contract, day) ? try_relation_open(contract->outbox, AccessShareLock) : NULL;
	if (outbox == NULL) {
		return false;
	}
	Relation relation = native_still_known() && native_is_bare(outbox) ? leaf_open(contract, outbox, day, &leaf) : NULL;
	if (relation != NULL) {
		uint64 then = native_changes();
		plain = true;
		if (of_intent) {
			bool is_null;
			Datum last = native_last_value(contract->outbox_day, &is_null);
			event_id = event_id_of(contract, &intent, kind);
			/* A transaction that inserts this event holds its lock. */
			plain = event_id != NULL && !is_null && DatumGetInt64(last) / 256 == day &&
			        native_lock_id(native_event_lock_number(&intent, kind)) &&
			        !is_there(relation, &leaf, &intent, kind) && !may_be_earlier(contract, outbox, day, &intent, kind);
		} else {
			event_id = DatumGetUUIDP(OidFunctionCall0(F_GEN_RANDOM_UUID));
		}
		if (plain) {
			LockRelationOid(RelationGetRelid(outbox), RowExclusiveLock);
			LockRelationOid(RelationGetRelid(relation), RowExclusiveLock);
			plain = then == native_changes(); /* else something changed meanwhile */
		}
		if (plain) {
			event_insert(fcinfo, relation, &leaf, now, event_id, kind);
			*result = UUIDPGetDatum(event_id);
		}
		table_close(relation, NoLock);
	}
	table_close(outbox, NoLock);
	return plain;
}
