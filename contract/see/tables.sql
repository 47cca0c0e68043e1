-- SPDX-License-Identifier: PostgreSQL
-- What attempts and messages are answered is counted for the whole database, by a sequence for each
-- answer (once._count). A sequence waits for nobody and is not rolled back, so a refusal counts
-- too. Unlogged where PostgreSQL can (15): counting writes no WAL, and begins anew after a crash.
DO $$
DECLARE
    kind text := CASE WHEN current_setting('server_version_num')::integer >= 150000 THEN 'UNLOGGED' ELSE '' END;
    verdict text;
BEGIN
    FOREACH verdict IN ARRAY ARRAY['new', 'replay', 'mismatch', 'active', 'stale', 'retryable', 'final', 'in_doubt', 'expired',
                                   'process', 'duplicate', 'message_mismatch'] LOOP
        EXECUTE format('CREATE %s SEQUENCE once.counted_%s', kind, verdict);
    END LOOP;
END $$;
