-- SPDX-License-Identifier: PostgreSQL
-- once._refuse_report(code, tenant, scope, key, bucket, fence): raises P4010 or P4011, with the cause: there is no such claim, another
-- attempt has taken over, or the intent is finished. Also looks in the archive.
CREATE FUNCTION once._refuse_report(code text, tenant text, scope text, key text, bucket integer, fence integer) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    started text := concat_ws(E'\x1f', E'\x1e', tenant, scope, key, '');
    stored once.intent;
    retired text := '';
    cause text;
    hint text := 'The attempt no longer holds the intent: discard its result. once.peek returns what is stored.';
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND AND bucket <> 0 THEN
        stored := once._archived(tenant, scope, key, bucket);
        retired := ', its day is retired';
    END IF;
    IF strpos(current_setting('once.started', true), started) > 0 AND (stored.fence >= fence) IS NOT TRUE THEN
        cause := 'this transaction started the intent and did not claim it';
        hint := 'Finish an intent of once.start with once.finish, in the same transaction. once.complete and once.fail are for once.claim.';
    ELSIF stored.state IS NULL THEN
        cause := 'there is no such claim';
        hint := 'Report with the tenant, scope and key of once.claim, after its COMMIT. Finish an intent of once.start with once.finish.';
    ELSIF stored.fence > fence THEN
        cause := 'another attempt has taken over';
    ELSIF stored.fence < fence THEN
        cause := 'this fence was never given';
        hint := 'Report with the fence that once.claim returned.';
    ELSIF stored.state = 'processing' THEN
        cause := 'another attempt is taking over';
    ELSE
        cause := 'the intent has another outcome already';
    END IF;
    PERFORM once._refuse(code, tenant, scope, key,
        CASE WHEN stored.state IS NOT NULL
             THEN format('the intent is %s under fence %s%s; the attempt has fence %s', stored.state, stored.fence, retired, fence) END,
        cause, hint);
END $$;
