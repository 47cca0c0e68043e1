/* SPDX-License-Identifier: PostgreSQL
 * The plain path of once.salt, which clients call with a tenant's first request, or with each if
 * they do not recognise their connection: for a caller that may name any tenant; and the salt of an
 * event's id. See attempt.c. */
#include "native.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

#define TENANT_BYTES_MAX 255

/* The column, if the table of settings is as the contract creates it; else 0. */
static AttrNumber salt_column(const native_contract *contract, Relation table)
{
	Form_pg_class class = table->rd_rel;
	AttrNumber column = get_attnum(RelationGetRelid(table), "salt");

	if (class->relkind != RELKIND_RELATION || class->relam != HEAP_TABLE_AM_OID || class->relowner != contract->owner ||
	    class->relhassubclass || !native_is_bare(table) || column <= 0 ||
	    TupleDescAttr(RelationGetDescr(table), column - 1)->atttypid != BYTEAOID) {
		return 0;
	}
	return column;
}

/* The one row's salt, followed by the tenant; NULL if there is none. Like the SQL function, which
 * is STABLE, it sees the statement's snapshot. */
static bytea *salted(Relation table, AttrNumber column, const text *tenant)
{
	TupleTableSlot *slot = table_slot_create(table, NULL);
	TableScanDesc scan = table_beginscan(table, GetActiveSnapshot(), 0, NULL);
	bytea *made = NULL;

	if (table_scan_getnextslot(scan, ForwardScanDirection, slot)) {
		bool is_null;
		Datum salt = slot_getattr(slot, column, &is_null);
		if (!is_null) {
			bytea *of_all = DatumGetByteaPP(salt);
			size_t bytes = VARSIZE_ANY_EXHDR(of_all), tenant_bytes = VARSIZE_ANY_EXHDR(tenant);
			made = palloc(VARHDRSZ + bytes + tenant_bytes);
			SET_VARSIZE(made, VARHDRSZ + bytes + tenant_bytes);
			memcpy(VARDATA(made), VARDATA_ANY(of_all), bytes);
			memcpy(VARDATA(made) + bytes, VARDATA_ANY(tenant), tenant_bytes);
		}
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	return made;
}

/* The tenant's salt; NULL if its table is not plain. */
bytea *native_salt_of(const native_contract *contract, const text *tenant)
{
	Relation table = ActiveSnapshotSet() ? try_relation_open(contract->setting, AccessShareLock) : NULL;
	if (table == NULL) {
		return NULL;
	}
	AttrNumber column = native_still_known() ? salt_column(contract, table) : 0;
	bytea *made = column > 0 ? salted(table, column, tenant) : NULL;
	table_close(table, NoLock);
	return made == NULL ? NULL : DatumGetByteaPP(DirectFunctionCall1(sha256_bytea, PointerGetDatum(made)));
}

bool native_do_salt(FunctionCallInfo fcinfo, const native_contract *contract, Datum *result)
{
	if (PG_ARGISNULL(0) || !native_session_is_plain(contract)) {
		return false;
	}
	text *tenant = PG_GETARG_TEXT_PP(0);
	bytea *salt = NULL;
	if (VARSIZE_ANY_EXHDR(tenant) > TENANT_BYTES_MAX || (salt = native_salt_of(contract, tenant)) == NULL) {
		return false;
	}
	*result = PointerGetDatum(salt);
	return true;
}
