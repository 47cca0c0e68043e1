/* SPDX-License-Identifier: PostgreSQL
 * Whether the contract in this database is the one that this library was built for, and where its
 * tables are. All of this is a cache of catalogues: callbacks for catalogue invalidations clear it,
 * and it is looked up again before the next use. */
#include "native.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_language.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_opfamily.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/proclang.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "nodes/parsenodes.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/partcache.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/syscache.h"

#define SCHEMA "once"
#define SUBSTITUTES "once_native"
#define LEAVES_MAX 8
#define MIRRORED_MAX 96

bool native_on = true;

static native_contract contract;
/* contract and contract_fits were looked up, and nothing has changed since. */
static bool contract_known;
static bool contract_fits;
static uint32 watched[MIRRORED_MAX]; /* hash values of the compared functions */
static int watched_count;
static Oid substitutes[FUNCTION_COUNT];
static bool substitutes_known;
static native_leaf leaves[LEAVES_MAX];
static int leaf_next;
static int32 last_day;     /* known to have a partition; 0: none known */
static Oid last_day_leaf;  /* that day's partition */
static uint64 changes;     /* counts invalidations */
static char obstacle[256]; /* why SQL decides, as last found */

/* The types of the columns in contract/key/tables.sql, and whether they may be NULL. */
static const struct {
	const char *name;
	Oid type; /* InvalidOid: once.state */
	bool required;
} columns[COLUMN_COUNT] = {
    [COLUMN_CREATED_AT] = {"created_at", TIMESTAMPTZOID, true},
    [COLUMN_UPDATED_AT] = {"updated_at", TIMESTAMPTZOID, true},
    [COLUMN_COMPLETED_AT] = {"completed_at", TIMESTAMPTZOID, false},
    [COLUMN_EXPIRES_AT] = {"expires_at", TIMESTAMPTZOID, false},
    [COLUMN_LEASE_UNTIL] = {"lease_until", TIMESTAMPTZOID, false},
    [COLUMN_BUCKET] = {"bucket", INT4OID, true},
    [COLUMN_FENCE] = {"fence", INT4OID, true},
    [COLUMN_ATTEMPTS] = {"attempts", INT4OID, true},
    [COLUMN_RESPONSE_STATUS] = {"response_status", INT4OID, false},
    [COLUMN_STATE] = {"state", InvalidOid, true},
    [COLUMN_FORMAT_VERSION] = {"format_version", INT2OID, true},
    [COLUMN_TENANT] = {"tenant", TEXTOID, true},
    [COLUMN_SCOPE] = {"scope", TEXTOID, true},
    [COLUMN_KEY] = {"key", TEXTOID, true},
    [COLUMN_FINGERPRINT] = {"fingerprint", BYTEAOID, true},
    [COLUMN_REDIRECTS] = {"redirects", BYTEAARRAYOID, false},
    [COLUMN_OWNER] = {"owner", TEXTOID, false},
    [COLUMN_RESULT_TYPE] = {"result_type", TEXTOID, false},
    [COLUMN_RESULT_ID] = {"result_id", TEXTOID, false},
    [COLUMN_ERROR_CODE] = {"error_code", TEXTOID, false},
    [COLUMN_ERROR_MESSAGE] = {"error_message", TEXTOID, false},
    [COLUMN_TRACEPARENT] = {"traceparent", TEXTOID, false},
    [COLUMN_RESPONSE_BODY] = {"response_body", BYTEAOID, false},
    [COLUMN_RESPONSE_HEADERS] = {"response_headers", JSONBOID, false},
};

static const char *const state_labels[STATE_COUNT] = {
    [STATE_SUCCEEDED] = "succeeded",
    [STATE_FAILED_RETRYABLE] = "failed_retryable",
    [STATE_FAILED_FINAL] = "failed_final",
    [STATE_PROCESSING] = "processing",
};

/* Notes why the library does not answer. Returns false. */
bool native_refuse(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(obstacle, sizeof obstacle, format, arguments);
	va_end(arguments);
	return false;
}

const char *native_refused(void)
{
	return obstacle;
}

/* A function was created, changed or dropped. */
static void function_changed(Datum unused, int cache, uint32 hash)
{
	(void)unused;
	(void)cache;
	changes++;
	substitutes_known = false;
	if (contract_known && contract_fits && hash != 0) {
		for (int i = 0; i < watched_count; i++) {
			if (watched[i] == hash) {
				contract_known = false;
			}
		}
		return;
	}
	contract_known = false;
}

/* The same for a schema or an enum label. */
static void names_changed(Datum unused, int cache, uint32 hash)
{
	(void)unused;
	(void)cache;
	(void)hash;
	changes++;
	contract_known = false;
	substitutes_known = false;
}

static void relation_changed(Datum unused, Oid relation)
{
	(void)unused;
	changes++;
	for (int i = 0; i < LEAVES_MAX; i++) {
		if (!OidIsValid(relation) || relation == contract.intent || leaves[i].relation == relation ||
		    leaves[i].primary_key == relation) {
			leaves[i].relation = InvalidOid;
		}
	}
	if (!OidIsValid(relation) || relation == last_day_leaf) {
		last_day = 0;
	}
	if (!OidIsValid(relation) || !contract_fits || relation == contract.intent || relation == contract.outbox ||
	    relation == contract.outbox_day || relation == contract.counted_new || relation == contract.counted_replay ||
	    relation == contract.counted_process || relation == contract.counted_duplicate ||
	    relation == contract.fence_floor || relation == contract.scope || relation == contract.parked_message ||
	    relation == contract.setting) {
		contract_known = false;
	}
}

void native_known_init(void)
{
	CacheRegisterSyscacheCallback(PROCOID, function_changed, (Datum)0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, names_changed, (Datum)0);
	CacheRegisterSyscacheCallback(ENUMOID, names_changed, (Datum)0);
	CacheRegisterRelcacheCallback(relation_changed, (Datum)0);
}

/* proconfig, one setting per line. */
static bool settings_are(HeapTuple tuple, const char *expected)
{
	bool none;
	Datum value = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_proconfig, &none);
	if (none) {
		return *expected == '\0';
	}
	Datum *elements;
	bool *nulls;
	int count;
	deconstruct_array(DatumGetArrayTypeP(value), TEXTOID, -1, false, TYPALIGN_INT, &elements, &nulls, &count);
	for (int i = 0; i < count; i++) {
		char *setting = nulls[i] ? pstrdup("") : TextDatumGetCString(elements[i]);
		size_t length = strlen(setting);
		if (strncmp(expected, setting, length) != 0 || expected[length] != '\n') {
			return false;
		}
		expected += length + 1;
	}
	return *expected == '\0';
}

/* Whether a set-returning function has the mirrored one's columns. */
static bool results_are(HeapTuple tuple, const native_mirrored *mirrored)
{
	if (mirrored->result_count == 0) {
		return true;
	}
	TupleDesc shape = build_function_result_tupdesc_t(tuple);
	if (shape == NULL || shape->natts != mirrored->result_count) {
		return false;
	}
	for (int i = 0; i < shape->natts; i++) {
		if (TupleDescAttr(shape, i)->atttypid != mirrored->result_types[i]) {
			return false;
		}
	}
	return true;
}

/* Whether this row of pg_proc is the function that the library mirrors. */
static bool function_fits(HeapTuple tuple, const native_mirrored *mirrored, Oid schema)
{
	Form_pg_proc form = (Form_pg_proc)GETSTRUCT(tuple);
	if (form->pronamespace != schema || form->pronargs != mirrored->argument_count ||
	    form->prokind != PROKIND_FUNCTION || form->prosecdef != mirrored->definer ||
	    form->proisstrict != mirrored->strict || form->provolatile != mirrored->volatility ||
	    form->proretset != (mirrored->result_count > 0) || !results_are(tuple, mirrored)) {
		return false;
	}
	for (int i = 0; i < form->pronargs; i++) {
		if (OidIsValid(mirrored->argument_types[i]) && form->proargtypes.values[i] != mirrored->argument_types[i]) {
			return false;
		}
	}
	if (strcmp(get_language_name(form->prolang, false), mirrored->language) != 0 ||
	    !settings_are(tuple, mirrored->settings)) {
		return false;
	}
	bool none;
	Datum value;
#if PG_VERSION_NUM >= 140000
	(void)SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosqlbody, &none);
	if (!none) {
		return false;
	}
#endif
	value = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &none);
	return !none && strcmp(TextDatumGetCString(value), mirrored->source) == 0;
}

/* The only function with this name in the contract; InvalidOid if there are several, or none. hash:
 * of its row, to watch it. */
static Oid function_look(const native_mirrored *mirrored, Oid schema, bool *fits, Oid *owner, uint32 *hash)
{
	Oid found = InvalidOid;
	CatCList *list = SearchSysCacheList1(PROCNAMEARGSNSP, CStringGetDatum(mirrored->name));
	for (int i = 0; i < list->n_members; i++) {
		HeapTuple tuple = &list->members[i]->tuple;
		Form_pg_proc form = (Form_pg_proc)GETSTRUCT(tuple);
		if (form->pronamespace != schema) {
			continue;
		}
		if (OidIsValid(found)) {
			found = InvalidOid;
			break;
		}
		found = form->oid;
		*fits = function_fits(tuple, mirrored, schema);
		*owner = form->proowner;
		*hash = GetSysCacheHashValue1(PROCOID, ObjectIdGetDatum(found));
	}
	ReleaseSysCacheList(list);
	return found;
}

/* Compares only names and texts, and takes no lock: it is called while any statement is planned. */
static bool contract_look(void)
{
	Oid schema = get_namespace_oid(SCHEMA, true);
	watched_count = 0;
	if (!OidIsValid(schema) || GetDatabaseEncoding() != PG_UTF8) {
		return native_refuse(OidIsValid(schema) ? "the database's encoding is not UTF-8" : "there is no schema once");
	}
	memset(&contract, 0, sizeof contract);
	contract.schema = schema;
	for (int i = 0; i < native_mirrored_count; i++) {
		bool fits = false;
		Oid owner = InvalidOid;
		uint32 hash = 0;
		Oid found = function_look(&native_mirrored_functions[i], schema, &fits, &owner, &hash);
		if (!OidIsValid(found) || !fits) {
			return native_refuse(
			    "once.%s is not the function that the library was built for, but that of another contract",
			    native_mirrored_functions[i].name);
		}
		if (i == 0) {
			contract.owner = owner;
		}
		if (owner != contract.owner || watched_count == MIRRORED_MAX) {
			return native_refuse("once.%s has another owner than the rest of the contract",
			                     native_mirrored_functions[i].name);
		}
		watched[watched_count++] = hash;
		if (i < FUNCTION_COUNT) {
			contract.functions[i] = found;
		} else if (strcmp(native_mirrored_functions[i].name, "any_tenant") == 0) {
			contract.any_tenant = found;
		} else if (strcmp(native_mirrored_functions[i].name, "_check_finished") == 0) {
			contract.check_finished = found;
		}
	}
	contract.intent = get_relname_relid("intent", schema);
	contract.counted_new = get_relname_relid("counted_new", schema);
	contract.counted_replay = get_relname_relid("counted_replay", schema);
	contract.counted_process = get_relname_relid("counted_process", schema);
	contract.counted_duplicate = get_relname_relid("counted_duplicate", schema);
	contract.scope = get_relname_relid("scope", schema);
	contract.parked_message = get_relname_relid("parked_message", schema);
	contract.outbox = get_relname_relid("outbox", schema);
	contract.outbox_day = get_relname_relid("outbox_day_seq", schema);
	contract.setting = get_relname_relid("setting", schema);
	contract.fence_floor = get_relname_relid("fence_floor_seq", schema);
	contract.state_type =
	    GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid, CStringGetDatum("state"), ObjectIdGetDatum(schema));
	contract.started_type =
	    GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid, CStringGetDatum("started"), ObjectIdGetDatum(schema));
	contract.claimed_type =
	    GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid, CStringGetDatum("claimed"), ObjectIdGetDatum(schema));
	for (int i = 0; i < STATE_COUNT; i++) {
		contract.states[i] = GetSysCacheOid2(ENUMTYPOIDNAME, Anum_pg_enum_oid, ObjectIdGetDatum(contract.state_type),
		                                     CStringGetDatum(state_labels[i]));
		if (!OidIsValid(contract.states[i])) {
			return native_refuse("once.state has no %s", state_labels[i]);
		}
	}
	bool found = OidIsValid(contract.any_tenant) && OidIsValid(contract.intent) && OidIsValid(contract.counted_new) &&
	             OidIsValid(contract.counted_replay) && OidIsValid(contract.counted_process) &&
	             OidIsValid(contract.counted_duplicate) && OidIsValid(contract.fence_floor) &&
	             OidIsValid(contract.scope) && OidIsValid(contract.parked_message) && OidIsValid(contract.setting) &&
	             OidIsValid(contract.started_type) && OidIsValid(contract.claimed_type);
	return found || native_refuse("a table, a sequence or a type of the contract is missing");
}

const native_contract *native_known(void)
{
	if (!native_on) {
		(void)native_refuse("once.native is off");
		return NULL;
	}
	if (!contract_known) {
		MemoryContext own = AllocSetContextCreate(CurrentMemoryContext, "pgonce_native", ALLOCSET_SMALL_SIZES);
		MemoryContext before = MemoryContextSwitchTo(own);
		uint64 then = changes;
		contract_fits = false;
		bool fits = contract_look();
		/* Changes during the look-up make the next call look again. */
		contract_fits = fits;
		contract_known = then == changes;
		MemoryContextSwitchTo(before);
		MemoryContextDelete(own);
		if (!contract_known) {
			return NULL;
		}
	}
	return contract_fits ? &contract : NULL;
}

Oid native_substitute(int function)
{
	if (!substitutes_known) {
		uint64 then = changes;
		Oid schema = get_namespace_oid(SUBSTITUTES, true);
		for (int i = 0; i < FUNCTION_COUNT; i++) {
			substitutes[i] = InvalidOid;
			if (OidIsValid(schema)) {
				Oid types[] = {INTERNALOID, ANYELEMENTOID};
				const native_mirrored *mirrored = &native_mirrored_functions[i];
				/* A plan may not have fewer arguments than the declaration. */
				bool alone = mirrored->argument_count == 1, many = mirrored->result_count > 0;
				oidvector *arguments = buildoidvector(types, alone ? 1 : 2);
				Oid result = many ? RECORDOID : alone ? BYTEAOID : ANYELEMENTOID;
				HeapTuple tuple = SearchSysCache3(PROCNAMEARGSNSP, CStringGetDatum(mirrored->name),
				                                  PointerGetDatum(arguments), ObjectIdGetDatum(schema));
				if (HeapTupleIsValid(tuple)) {
					/* Only a superuser can create a function in C, so the schema's name alone is
					 * not trusted. */
					Form_pg_proc form = (Form_pg_proc)GETSTRUCT(tuple);
					bool none;
					Datum symbol = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &none);
					char expected[NAMEDATALEN];
					snprintf(expected, sizeof expected, "native_%s", mirrored->name);
					if (form->prolang == ClanguageId && !form->proisstrict && form->proretset == many &&
					    form->prorettype == result && results_are(tuple, mirrored) && !none &&
					    strcmp(TextDatumGetCString(symbol), expected) == 0) {
						substitutes[i] = form->oid;
					}
					ReleaseSysCache(tuple);
				}
			}
		}
		substitutes_known = then == changes;
	}
	return substitutes[function];
}

/* The function that a substitute's call goes to when the contract is no longer known: by its name
 * and arguments. */
Oid native_function_find(int function)
{
	const native_contract *known = native_known();
	if (known != NULL) {
		return known->functions[function];
	}
	Oid schema = get_namespace_oid(SCHEMA, false);
	const native_mirrored *mirrored = &native_mirrored_functions[function];
	oidvector *arguments = buildoidvector(mirrored->argument_types, mirrored->argument_count);
	Oid found = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum(mirrored->name),
	                            PointerGetDatum(arguments), ObjectIdGetDatum(schema));
	if (!OidIsValid(found)) {
		ereport(ERROR, errcode(ERRCODE_UNDEFINED_FUNCTION),
		        errmsg("function once.%s no longer exists", mirrored->name));
	}
	return found;
}

/* True: the partition's bound is exactly this day. */
static bool bound_is(Oid relation, int32 bucket)
{
	HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relation));
	if (!HeapTupleIsValid(tuple)) {
		return false;
	}
	bool none, is = false;
	Datum value = SysCacheGetAttr(RELOID, tuple, Anum_pg_class_relpartbound, &none);
	if (!none) {
		PartitionBoundSpec *bound = stringToNode(TextDatumGetCString(value));
		if (IsA(bound, PartitionBoundSpec) && bound->strategy == PARTITION_STRATEGY_RANGE && !bound->is_default &&
		    list_length(bound->lowerdatums) == 1 && list_length(bound->upperdatums) == 1) {
			PartitionRangeDatum *lower = linitial(bound->lowerdatums);
			PartitionRangeDatum *upper = linitial(bound->upperdatums);
			if (lower->kind == PARTITION_RANGE_DATUM_VALUE && upper->kind == PARTITION_RANGE_DATUM_VALUE &&
			    IsA(lower->value, Const) && IsA(upper->value, Const)) {
				is = ((Const *)lower->value)->consttype == INT4OID &&
				     DatumGetInt32(((Const *)lower->value)->constvalue) == bucket &&
				     DatumGetInt32(((Const *)upper->value)->constvalue) == bucket + 1;
			}
		}
	}
	ReleaseSysCache(tuple);
	return is;
}

/* True: there is nothing else that an INSERT would have to fire or obey. Cheap, so each call checks
 * it. */
bool native_is_bare(Relation relation)
{
	bool bare = relation->trigdesc == NULL && relation->rd_rules == NULL && !relation->rd_rel->relrowsecurity &&
	            !relation->rd_rel->relforcerowsecurity;

	return bare || native_refuse("%s has a trigger, a rule or row security", RelationGetRelationName(relation));
}

/* Whether the parent is the table that the contract creates, partitioned by bucket. */
static bool intent_fits(const native_contract *known, Relation intent)
{
	if (intent->rd_rel->relkind != RELKIND_PARTITIONED_TABLE || intent->rd_rel->relowner != known->owner) {
		return native_refuse("once.intent is not the contract's owner's partitioned table");
	}
	PartitionKey key = RelationGetPartitionKey(intent);
	return (key->strategy == PARTITION_STRATEGY_RANGE && key->partnatts == 1 &&
	        key->partattrs[0] == get_attnum(RelationGetRelid(intent), "bucket")) ||
	       native_refuse("once.intent is not partitioned by bucket");
}

/* Whether a table, which the caller has opened and locked, is the partition with this name, whose
 * bound is exactly this number, as the contract creates it: nothing that an INSERT would have to
 * compute or check. */
bool native_is_leaf(const native_contract *known, Relation relation, Oid parent, const char *name, int32 number)
{
	TupleDesc shape = RelationGetDescr(relation);
	Form_pg_class class = relation->rd_rel;

	if (class->relkind != RELKIND_RELATION || class->relam != HEAP_TABLE_AM_OID ||
	    class->relpersistence != RELPERSISTENCE_PERMANENT || !class->relispartition ||
	    class->relnamespace != known->schema || class->relowner != known->owner ||
	    strcmp(NameStr(class->relname), name) != 0) {
		return native_refuse("%s is not an ordinary partition of the contract's owner", name);
	}
#if PG_VERSION_NUM >= 140000
	if (get_partition_parent(RelationGetRelid(relation), true) != parent ||
	    PartitionHasPendingDetach(RelationGetRelid(relation))) {
		return native_refuse("%s is being detached", name);
	}
#else
	if (get_partition_parent(RelationGetRelid(relation)) != parent) {
		return native_refuse("%s has another parent", name);
	}
#endif
	if (shape->natts > NATTS_MAX || !bound_is(RelationGetRelid(relation), number)) {
		return native_refuse("%s has too many columns, or is not of one day", name);
	}
	if (shape->constr != NULL && (shape->constr->num_check > 0 || shape->constr->has_generated_stored)) {
		return native_refuse("%s has a CHECK or a generated column", name);
	}
#if PG_VERSION_NUM >= 180000
	if (shape->constr != NULL && shape->constr->has_generated_virtual) {
		return native_refuse("%s has a generated column", name);
	}
#endif
	return true;
}

/* Whether an index is a valid B-tree with exactly so many columns. */
bool native_is_plain_index(Relation index, int keys)
{
	Form_pg_index form = index->rd_index;

	return form->indimmediate && form->indisvalid && form->indisready && form->indislive && form->indnatts == keys &&
	       form->indnkeyatts == keys && index->rd_rel->relam == BTREE_AM_OID && index->rd_indextuple != NULL &&
	       heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL) &&
	       heap_attisnull(index->rd_indextuple, Anum_pg_index_indexprs, NULL);
}

/* Learns a partition, which the caller has opened and locked; false if it is not as the contract
 * creates it. */
static bool leaf_learn(const native_contract *known, Relation relation, int32 bucket, native_leaf *leaf)
{
	TupleDesc shape = RelationGetDescr(relation);
	char name[NAMEDATALEN];

	snprintf(name, sizeof name, "intent_d%d", bucket);
	if (!native_is_leaf(known, relation, known->intent, name, bucket)) {
		return false;
	}
	leaf->natts = shape->natts;
	memset(leaf->columns, 0, sizeof leaf->columns);
	int found = 0;
	for (int i = 0; i < shape->natts; i++) {
		Form_pg_attribute attribute = TupleDescAttr(shape, i);
		if (attribute->attisdropped) {
			continue;
		}
		int column = 0;
		while (column < COLUMN_COUNT && strcmp(NameStr(attribute->attname), columns[column].name) != 0) {
			column++;
		}
		Oid type = column == COLUMN_COUNT   ? InvalidOid
		           : column == COLUMN_STATE ? known->state_type
		                                    : columns[column].type;
		if (column == COLUMN_COUNT || attribute->atttypid != type ||
		    attribute->attnotnull != columns[column].required || attribute->attidentity != '\0' ||
		    attribute->attgenerated != '\0' || (type == TEXTOID && attribute->attcollation != C_COLLATION_OID)) {
			return native_refuse("%s has the column %s, which the contract lacks or defines differently", name,
			                     NameStr(attribute->attname));
		}
		leaf->columns[column] = attribute->attnum;
		found++;
	}
	if (found != COLUMN_COUNT) {
		return native_refuse("%s lacks a column of the contract", name);
	}

	List *indexes = RelationGetIndexList(relation);
	if (list_length(indexes) != 1) {
		return native_refuse("%s has %d indexes, but the contract's has one", name, list_length(indexes));
	}
	leaf->primary_key = linitial_oid(indexes);
	Relation index = index_open(leaf->primary_key, AccessShareLock);
	Form_pg_index form = index->rd_index;
	static const int key[] = {COLUMN_SCOPE, COLUMN_KEY, COLUMN_TENANT, COLUMN_BUCKET};
	bool fits = form->indisprimary && form->indisunique && native_is_plain_index(index, 4);
	for (int i = 0; fits && i < 4; i++) {
		fits = form->indkey.values[i] == leaf->columns[key[i]] && index->rd_indoption[i] == 0 &&
		       (i == 3 ? index->rd_opfamily[i] == INTEGER_BTREE_FAM_OID
		               : index->rd_opfamily[i] == TEXT_BTREE_FAM_OID && index->rd_indcollation[i] == C_COLLATION_OID);
	}
	index_close(index, NoLock);
	leaf->bucket = bucket;
	leaf->relation = RelationGetRelid(relation);
	return fits || native_refuse("the primary key of %s is not the contract's", name);
}

/* Whether the next day has its partition. If not, SQL creates it in passing, with that of the
 * outbox: see once._is_new_day. */
bool native_has_next_day(const native_contract *known, int32 day)
{
	if (day >= last_day) {
		char name[NAMEDATALEN];
		snprintf(name, sizeof name, "intent_d%d", day + 1);
		Oid found = get_relname_relid(name, known->schema);
		if (!OidIsValid(found)) {
			return false;
		}
		last_day = day + 1;
		last_day_leaf = found;
	}
	return true;
}

/* A bucket's partition, and its parent. alone: for a statement that names only the partition; then
 * the parent is locked only while the partition is learned. */
bool native_leaf_find(const native_contract *known, int32 bucket, LOCKMODE mode, bool alone, native_tables *tables)
{
	Oid intent = known->intent;
	native_leaf *place = NULL;
	Oid relation = InvalidOid;

	tables->leaf = NULL;
	tables->intent = NULL;
	if (bucket > 0 && !native_has_next_day(known, bucket)) {
		return false;
	}
	if (!alone) {
		tables->intent = try_relation_open(intent, mode);
		if (tables->intent == NULL) {
			return false;
		}
		if (!contract_known || !native_is_bare(tables->intent)) {
			native_tables_close(tables);
			return false;
		}
	}
	for (int i = 0; i < LEAVES_MAX; i++) {
		if (leaves[i].bucket == bucket && OidIsValid(leaves[i].relation)) {
			place = &leaves[i];
			relation = place->relation;
		}
	}
	if (place == NULL) {
		char name[NAMEDATALEN];
		snprintf(name, sizeof name, "intent_d%d", bucket);
		relation = get_relname_relid(name, known->schema);
	}
	tables->leaf = OidIsValid(relation) ? try_relation_open(relation, mode) : NULL;
	if (tables->leaf == NULL) {
		(void)native_refuse("there is no table intent_d%d", bucket);
		native_tables_close(tables);
		return false;
	}
	/* Taking the lock brings other sessions' changes: a day that was just closed has another name,
	 * and is no longer known. */
	if (place == NULL || place->relation != relation || place->bucket != bucket) {
		native_leaf learnt;
		uint64 then = changes;
		MemoryContext own = AllocSetContextCreate(CurrentMemoryContext, "pgonce_native", ALLOCSET_SMALL_SIZES);
		MemoryContext before = MemoryContextSwitchTo(own);
		Relation parent = alone ? try_relation_open(intent, AccessShareLock) : tables->intent;
		bool fits = parent != NULL && intent_fits(known, parent) && leaf_learn(known, tables->leaf, bucket, &learnt);
		if (alone && parent != NULL) {
			table_close(parent, AccessShareLock);
		}
		MemoryContextSwitchTo(before);
		MemoryContextDelete(own);
		if (!fits) {
			native_tables_close(tables);
			return false;
		}
		tables->known = learnt;
		if (then == changes) {
			leaves[leaf_next] = learnt;
			leaf_next = (leaf_next + 1) % LEAVES_MAX;
		}
	} else {
		tables->known = *place;
	}
	if (!contract_known || !native_is_bare(tables->leaf)) {
		native_tables_close(tables);
		return false;
	}
	tables->changes = changes;
	return true;
}

/* Takes a stronger lock on both, as a later statement of the SQL function does. False: something
 * changed during the wait. */
bool native_tables_lock(native_tables *tables, LOCKMODE mode)
{
	if (tables->intent != NULL) {
		LockRelationOid(RelationGetRelid(tables->intent), mode);
	}
	LockRelationOid(RelationGetRelid(tables->leaf), mode);
	return tables->changes == changes;
}

bool native_still_known(void)
{
	return contract_known;
}

uint64 native_changes(void)
{
	return changes;
}

/* The locks are kept, as those of a statement are. */
void native_tables_close(native_tables *tables)
{
	if (tables->leaf != NULL) {
		table_close(tables->leaf, NoLock);
	}
	if (tables->intent != NULL) {
		table_close(tables->intent, NoLock);
	}
}
