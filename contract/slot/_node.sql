-- SPDX-License-Identifier: PostgreSQL
-- once._node(): the facts that all nodes of an installation share, for pgonce init --join: contract, settings with the salt, policies,
-- bindings, and slot_of. Only for the owner of the contract: with the salt one can guess the request of a fingerprint.
CREATE FUNCTION once._node() RETURNS jsonb LANGUAGE sql
SET search_path = pg_catalog, pg_temp SET intervalstyle = 'postgres' SET bytea_output = hex AS $$
    SELECT jsonb_build_object(
        'divided', once._is_divided() AND once._is_guarded(),
        'contract', (SELECT jsonb_agg(jsonb_build_array(m.version, m.checksum) ORDER BY m.version) FROM once.migration AS m),
        'setting', (SELECT to_jsonb(s) FROM once.setting AS s),
        'scopes', (SELECT coalesce(jsonb_agg(to_jsonb(s) ORDER BY s.scope), '[]') FROM once.scope AS s),
        'bindings', (SELECT coalesce(jsonb_agg(to_jsonb(b) ORDER BY b.role_name, b.tenant), '[]') FROM once.binding AS b),
        'slot_of', pg_get_functiondef('once.slot_of(text)'::regprocedure))
$$;
