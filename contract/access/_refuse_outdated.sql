-- SPDX-License-Identifier: PostgreSQL
-- once._refuse_outdated(tenant, scope, key, bucket): called for a row of a closed day without an answer, before its key is reported as
-- expired: raises 40001 if the transaction's snapshot is older than the row. A report or a decision may have been stored since. Locks the
-- row until the transaction ends; a read-only transaction cannot, and gets what its snapshot shows.
CREATE FUNCTION once._refuse_outdated(tenant text, scope text, key text, bucket integer) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off AS $$
#variable_conflict use_variable
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable')
       OR current_setting('transaction_read_only') = 'on' THEN
        RETURN;
    END IF;
    PERFORM FROM once.intent AS i
      WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
        AND i.bucket = bucket
        FOR SHARE SKIP LOCKED;                          -- raises 40001 if the row has changed
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'pgonce: the intent is being changed, or moved, right now',
            DETAIL = format('tenant=%L scope=%L key=%L', tenant, scope, key), HINT = 'Retry the transaction.';
    END IF;
END $$;
