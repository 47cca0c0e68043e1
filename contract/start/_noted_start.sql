-- SPDX-License-Identifier: PostgreSQL
-- once._noted_start(tenant, scope, key, fingerprint): the fence under which this transaction has started an intent for this request
-- (once._note_start), the latest if there are several; NULL if it has not, or not for this request. Inlined.
CREATE FUNCTION once._noted_start(tenant text, scope text, key text, fingerprint bytea) RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT nullif(split_part(split_part(current_setting('once.started', true),
        concat_ws(E'\x1f', E'\x1e', tenant, scope, key, fingerprint, ''), 2), E'\x1f', 1), '')::integer
$$;
