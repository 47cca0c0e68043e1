-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor, and pgonce init: functions that the existing roles of the contract cannot call, because they were not granted
-- or are gone. By the catalogs alone, so any role can run it.
WITH roles AS (
    SELECT wanted.role_name, r.oid, wanted.functions
      FROM (VALUES
          ('once_app', ARRAY['start', 'finish', 'claim', 'claim_many', 'complete', 'fail', 'renew', 'release', 'peek', 'receive', 'emit',
              'errors', 'any_tenant']),
          ('once_tenant', ARRAY['start', 'finish', 'claim', 'complete', 'fail', 'renew', 'release', 'peek', 'errors']),
          ('once_relay', ARRAY['relay_take', 'relay_fetch', 'relay_settle', 'relay_due', 'add_days', 'errors']),
          ('once_capture', ARRAY['errors']),
          ('once_consumer', ARRAY['receive', 'receive_many', 'message_park', 'message_due', 'errors']),
          ('once_keeper', ARRAY['keep_steps', 'keep_take', 'keep_step', 'add_days', 'retire_day', 'retire_outbox', 'errors']),
          ('once_reader', ARRAY['story', 'peek', 'parked_summary', 'parked_list', 'errors']),
          ('once_admin', ARRAY['resolve', 'set_scope', 'bind', 'story', 'parked_retry', 'parked_replay', 'errors']))
          AS wanted (role_name, functions)
      LEFT JOIN pg_catalog.pg_roles AS r ON r.rolname = wanted.role_name
), lacking AS (
    SELECT format('%s to %s', f.name, r.role_name) AS what
      FROM roles AS r, unnest(r.functions) AS f (name)
     WHERE r.oid IS NOT NULL
       AND NOT EXISTS (SELECT FROM pg_catalog.pg_proc AS p
                        WHERE p.pronamespace IN (to_regnamespace('once'), to_regnamespace('once_job')) AND p.proname = f.name
                          AND has_schema_privilege(r.oid, p.pronamespace, 'usage') AND has_function_privilege(r.oid, p.oid, 'execute'))
    UNION ALL
    SELECT 'anything of the schema once_job, which is gone' WHERE to_regnamespace('once_job') IS NULL
)
SELECT 'grants', CASE count(*) WHEN 0 THEN 'ok' ELSE 'failed' END,
       coalesce('not granted: '
           || left(string_agg(what, ', ' ORDER BY what), 200), 'the default'),
       'run pgonce init as the owner of the contract'
  FROM lacking
