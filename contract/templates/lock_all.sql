-- SPDX-License-Identifier: PostgreSQL
-- lock_all(fits, scope, key, fingerprint): takes the locks of a batch, one by one, and leaves the block `short` at the first element that
-- does not fit, has a bad fingerprint, or is locked by another session. A loop of expressions, because a statement costs much
-- more before its first element.
FOR n IN 1 .. size LOOP
    EXIT short WHEN (octet_length({fingerprint}) BETWEEN 16 AND 64 AND {fits}
                     AND pg_try_advisory_xact_lock(once._lock_id(tenant, {scope}, {key}))) IS NOT TRUE;
END LOOP;
