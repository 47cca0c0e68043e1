-- SPDX-License-Identifier: PostgreSQL
-- once._archived(tenant, scope, key, bucket): the row of an intent whose day is closed, which once.intent no longer shows: from the
-- archive if it outlived its day, or from the day's table, which is detached before it is dropped; NULL if it is in neither. Raises 40001
-- if the snapshot is older than the end of that table: the row may have moved since, and a stored answer must not be denied. The same if
-- the snapshot is older than the whole retirement, and so shows the day as open: then it also shows the table in the catalogue. No
-- snapshot shows a table for a day that never existed or whose table was lost.
CREATE FUNCTION once._archived(tenant text, scope text, key text, bucket integer) RETURNS once.intent LANGUAGE plpgsql STABLE AS $$
DECLARE
    kept once.intent;
    leaf regclass;
BEGIN
    SELECT a.* INTO kept FROM once.archive AS a
     WHERE a.tenant = _archived.tenant COLLATE "C" AND a.scope = _archived.scope COLLATE "C"
       AND a.key = _archived.key COLLATE "C" AND a.bucket = _archived.bucket;
    IF FOUND THEN
        RETURN kept;
    END IF;
    leaf := to_regclass('once.intent_closed_d' || bucket);          -- sees a drop that is later than the snapshot; tables do not
    IF leaf IS NOT NULL THEN
        BEGIN
            EXECUTE format('SELECT * FROM once.%I WHERE tenant = $1 AND scope = $2 AND key = $3', 'intent_closed_d' || bucket)
               INTO kept USING tenant, scope, key;
            RETURN kept;
        EXCEPTION WHEN undefined_table THEN
            leaf := NULL;                                           -- dropped right now
        END;
    END IF;
    IF EXISTS (SELECT FROM once.closing AS c WHERE c.day = bucket)
       OR (bucket > 0 AND to_regclass('once.intent_d' || bucket) IS NULL
           AND EXISTS (SELECT FROM pg_class AS c WHERE c.relnamespace = 'once'::regnamespace
                          AND c.relname IN ('intent_d' || bucket, 'intent_closed_d' || bucket))) THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'pgonce: the day of this key was retired just now',
            DETAIL = format('tenant=%L scope=%L key=%L', tenant, scope, key), HINT = 'Retry the transaction.';
    END IF;
    RETURN kept;
END $$;
