/* SPDX-License-Identifier: PostgreSQL
 * Tells users why calls are left to SQL. */
#include "native.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/resowner.h"

/* once_native.obstacle(of_events): why the plain calls of this session are left to SQL, those of
 * once.emit or all others; NULL: they are answered here. It reads only catalogues and keeps no
 * lock, so any role may call it. */
PG_FUNCTION_INFO_V1(native_obstacle);
PGDLLEXPORT Datum native_obstacle(PG_FUNCTION_ARGS)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	BeginInternalSubTransaction(NULL);
	const native_contract *known = native_known();
	int32 buckets[] = {0, native_day(GetCurrentTimestamp())};
	bool fits = known != NULL;

	if (fits) {
		(void)native_refuse("the tables are being changed");
	}
	if (fits && PG_GETARG_BOOL(0)) {
		fits = native_outbox_fits(known, buckets[1]);
	} else {
		for (size_t i = 0; fits && i < lengthof(buckets); i++) {
			native_tables tables;
			char name[NAMEDATALEN];
			snprintf(name, sizeof name, "intent_d%d", buckets[i]);
			if (!OidIsValid(get_relname_relid(name, known->schema))) {
				continue; /* the next call creates it */
			}
			fits = native_leaf_find(known, buckets[i], AccessShareLock, false, &tables);
			if (fits) {
				native_tables_close(&tables);
			}
		}
	}
	RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (fits) {
		PG_RETURN_NULL();
	}
	PG_RETURN_TEXT_P(cstring_to_text(native_refused()));
}
