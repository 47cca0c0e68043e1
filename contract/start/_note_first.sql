-- SPDX-License-Identifier: PostgreSQL
-- once._note_first(tenant, scope, key, fingerprint, fence): once._note_start for the first start of a transaction, if once.strict is not
-- set. Otherwise returns NULL and notes nothing. Inlined; each additional operator would cost every start 2,000 instructions.
CREATE FUNCTION once._note_first(tenant text, scope text, key text, fingerprint bytea, fence text) RETURNS text LANGUAGE sql AS $$
    SELECT CASE WHEN concat(current_setting('once.started', true), current_setting('once.strict', true)) = ''
        THEN set_config('once.started', concat_ws(E'\x1f', E'\x1e', tenant, scope, key, fingerprint, fence), true) END
$$;
