-- SPDX-License-Identifier: PostgreSQL
-- once._has_started(tenant, scope, key, fingerprint): whether this transaction has started an intent for this request (once._note_start),
-- and so holds its lock. Inlined.
CREATE FUNCTION once._has_started(tenant text, scope text, key text, fingerprint bytea) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT strpos(current_setting('once.started', true), concat_ws(E'\x1f', E'\x1e', tenant, scope, key, fingerprint, '')) > 0
$$;
