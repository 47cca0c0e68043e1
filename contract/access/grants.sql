-- SPDX-License-Identifier: PostgreSQL
-- Who may do what. Only the owner accesses tables, except that once_capture reads once.outbox; each role below may EXECUTE the functions
-- listed for it, in once and in once_job, whose schema it may use if it has a function there; once_reader and once_admin may read the
-- views, which show all tenants. The roles are created if the installer may create roles; if not, a notice names them, and pgonce doctor
-- shows the commands for an administrator. The script ends without its own role: it runs again at every upgrade, and revokes what other
-- roles were granted meanwhile.

-- First revoke from everyone but the owner: PUBLIC may execute any new function, and default privileges (ALTER DEFAULT PRIVILEGES) may
-- have opened a new object to anyone.
REVOKE ALL ON ALL ROUTINES IN SCHEMA once, once_job FROM PUBLIC;
DO $$
DECLARE
    opened record;
BEGIN
    PERFORM once._close(c.oid::regclass) FROM pg_catalog.pg_class AS c
      WHERE c.relnamespace = 'once'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S');
    FOR opened IN
        SELECT DISTINCT o.name, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE format('%I', pg_get_userbyid(a.grantee)) END AS grantee
          FROM (SELECT format('ROUTINE %s', p.oid::regprocedure) AS name, p.proowner AS owner, p.proacl AS acl
                  FROM pg_catalog.pg_proc AS p WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace)
                 UNION ALL
                SELECT format('SCHEMA %I', n.nspname), n.nspowner, n.nspacl FROM pg_catalog.pg_namespace AS n
                 WHERE n.nspname IN ('once', 'once_job')) AS o
         CROSS JOIN LATERAL aclexplode(o.acl) AS a
         WHERE a.grantee <> o.owner
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s CASCADE', opened.name, opened.grantee);
    END LOOP;
END $$;

DO $$
DECLARE
    -- role, purpose, its functions. once_tenant is once_app for the roles of one tenant: see once.bind.
    app text[] := ARRAY['start', 'try_start', 'finish', 'finish_new', 'claim', 'claim_many', 'complete', 'complete_many',
    'fail',
    'fail_many', 'renew', 'renew_many',
                        'release', 'peek', 'peek_many', 'salt', 'fingerprint', 'request_fingerprint', 'key_of_header',
                            'receive', 'emit', 'emit_bytes', 'emit_later', 'cancel_event', 'try_lock', 'lock',
                            'errors', 'contract_version', 'count_cached', 'slot_of', 'slots',
                            'receive_many', 'consumer_report', 'consumer_ids'];
    shown text[] := ARRAY['slot_of', 'slots', 'counts', 'attempt_counts', 'metrics', 'find', 'top', 'outbox_summary', 'outbox_untaken',
        'outbox_delayed', 'capture_list', 'parked_summary', 'parked_list', 'find_part', 'scope_list', 'consumer_list', 'latency',
        'readable', 'doubts_part', 'ask', 'outline', 'parked_outline'];
    parked text[] := ARRAY['message_park', 'message_due', 'message_applied', 'message_look', 'message_count', 'consumer_remembers'];
    keeping text[] := ARRAY['keeper_status', 'keeper_lease', 'retention_held'];
    kept text[] := keeping || ARRAY['keep', 'keep_steps', 'keep_take', 'keep_release', 'keep_step', 'keep_failed', 'recover'];
    granted record;
    target record;
BEGIN
    FOR granted IN
        SELECT * FROM (VALUES
            ('once_app',    app || ARRAY['any_tenant']),
            ('once_tenant', app),
            ('once_relay',  ARRAY['errors', 'contract_version', 'slots', 'add_days', 'any_tenant', 'relay_take', 'relay_look',
                'relay_flush', 'relay_list', 'relay_fetch', 'relay_due', 'relay_settle',
                'relay_parked', 'relay_release', 'metrics']),
            ('once_capture', ARRAY['errors', 'contract_version']),
            ('once_consumer', parked || ARRAY['errors', 'contract_version', 'slots', 'add_days', 'any_tenant', 'receive', 'receive_many',
                'salt',
                'claim_many', 'complete_many', 'fail_many', 'renew_many', 'peek_many', 'release', 'consumer_report', 'consumer_ids',
                'metrics']),
            ('once_keeper', kept || ARRAY['slots', 'counts', 'metrics', 'errors', 'contract_version', 'add_days', 'retire_day',
                'retire_outbox', 'any_tenant']),
            ('once_support', shown || keeping || ARRAY['errors', 'contract_version', 'any_tenant']),
            ('once_reader', shown || keeping || ARRAY['errors', 'contract_version', 'peek', 'peek_many', 'story', 'parked_show',
                'any_tenant']),
            ('once_admin',  app || parked || shown || kept || ARRAY['set_keeping', 'any_tenant', 'story', 'parked_show', 'verify',
                'resolve', 'resolve_many', 'resolve_seen', 'set_scope', 'bind', 'unbind', 'add_days',
                'retire_day', 'retire_outbox', 'parked_retry', 'parked_discard', 'parked_retry_many', 'parked_discard_many',
                'parked_replay', 'relay_adopt', 'add_capture', 'drop_relay', 'close_slot', 'open_slot'])) AS g (role_name, functions)
    LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.rolname = granted.role_name) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', granted.role_name);
            EXCEPTION
                WHEN insufficient_privilege THEN
                    RAISE NOTICE 'pgonce: role % is missing, and % may not make it: an administrator makes it, then run % again',
                                 granted.role_name, current_user, 'pgonce init or pgonce.sql';
                    CONTINUE;
                WHEN duplicate_object OR unique_violation THEN NULL;    -- another installation in this cluster has just created it
            END;
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA once TO %I', granted.role_name);
        FOR target IN
            SELECT p.pronamespace::regnamespace AS schema, p.oid::regprocedure AS name
              FROM pg_catalog.pg_proc AS p
             WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace) AND p.proname = ANY (granted.functions)
        LOOP
            EXECUTE format('GRANT USAGE ON SCHEMA %s TO %I', target.schema, granted.role_name);
            EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO %I', target.name, granted.role_name);
        END LOOP;
        IF granted.role_name = 'once_capture' THEN         -- the client of a replication slot reads the table before it follows the slot
            GRANT SELECT ON once.outbox TO once_capture;
        END IF;
        IF granted.role_name IN ('once_reader', 'once_admin') THEN
            FOR target IN SELECT c.oid::regclass AS name FROM pg_catalog.pg_class AS c
                           WHERE c.relnamespace = 'once'::regnamespace AND c.relkind = 'v' LOOP
                EXECUTE format('GRANT SELECT ON %s TO %I', target.name, granted.role_name);
            END LOOP;
        END IF;
    END LOOP;
END $$;
