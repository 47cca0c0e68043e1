-- SPDX-License-Identifier: PostgreSQL
-- once._counter(verdict, scope, other): the sequence that counts how often attempts of a scope were told this; `other`, that
-- of the default policy, for scopes without a policy of their own. A name made from the scope's hash, which the system's
-- cache answers: no table is read for it, start and finish read no policy. Inlined. See once._add_counters.
CREATE FUNCTION once._counter(verdict text, scope text, other regclass) RETURNS regclass
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT coalesce(to_regclass('once.counted_' || verdict || '_' || to_hex(hashtextextended(scope COLLATE "C", 0))), other)
$$;
