-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: Citus in this database, and the anchor. By the catalogs alone, so any role can run it.
WITH anchored AS (
    SELECT count(*) AS triggers FROM pg_catalog.pg_trigger AS t WHERE t.tgfoid = to_regprocedure('once._anchor()')
)
SELECT 'citus', CASE WHEN e.extversion IS NULL OR a.triggers = 6 THEN 'ok' ELSE 'warning' END,
       CASE WHEN e.extversion IS NULL THEN 'not in this database'
            WHEN a.triggers = 6 THEN format('Citus %s, and the memory is anchored', e.extversion)
            ELSE format('Citus %s does not commit the memory together with an effect on another node', e.extversion) END,
       'SELECT once.anchor() as the owner of the contract, first on the coordinator; or keep the effect on the node that remembers its key'
  FROM anchored AS a LEFT JOIN pg_catalog.pg_extension AS e ON e.extname = 'citus'
