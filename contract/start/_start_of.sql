-- SPDX-License-Identifier: PostgreSQL
-- once._start_of(tenant, scope, key, bucket, fingerprint): once._noted_start for once.finish, which does not let it pass:
-- raises P4012 where this transaction has not started the intent, P4015 where it has, for another request. Bytes are compared
-- and not their text, whose form bytea_output may change on the way.
CREATE FUNCTION once._start_of(tenant text, scope text, key text, bucket integer, fingerprint bytea) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    started text := current_setting('once.started', true);
    of_intent text := concat_ws(E'\x1f', E'\x1e', tenant, scope, key, '');
    note text := split_part(started, of_intent, 2);         -- and the older ones
BEGIN
    IF coalesce(strpos(started, of_intent), 0) = 0 THEN
        PERFORM once._refuse('P4012', tenant, scope, key, once._why_not_started(tenant, scope, key, bucket, fingerprint));
    ELSIF split_part(note, E'\x1f', 1)::bytea <> fingerprint THEN
        PERFORM once._refuse('P4015', tenant, scope, key);
    END IF;
    RETURN split_part(note, E'\x1f', 2)::integer;
END $$;
