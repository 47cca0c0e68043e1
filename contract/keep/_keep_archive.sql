-- SPDX-License-Identifier: PostgreSQL
-- once._keep_archive(): the step 'archive': deletes expired rows from the archive; drops a month that is empty and whose days are all
-- retired. Intents in doubt stay.
CREATE FUNCTION once._keep_archive() RETURNS once.kept LANGUAGE plpgsql SET jit = off AS $$
DECLARE
    why text := once._deletion_held();
    closed integer := (SELECT least(min(c.day), (SELECT s.closed_before FROM once.setting AS s WHERE s.only_row))
                         FROM once.closing AS c);
    leaves text[] := ARRAY(SELECT c.relname::text FROM pg_inherits AS h JOIN pg_class AS c ON c.oid = h.inhrelid
                            WHERE h.inhparent = 'once.archive'::regclass ORDER BY c.relname);
    leaf text;
    piece record;
    filled boolean;
BEGIN
    IF why IS NOT NULL OR cardinality(leaves) = 0 THEN
        RETURN ROW(0, false, NULL, why)::once.kept;
    END IF;
    piece := once._delete_past('archive', leaves);
    IF piece.more OR piece.done > 0 THEN
        RETURN ROW(piece.done, true, NULL, format('%s archived intents deleted', piece.done))::once.kept;
    END IF;
    FOREACH leaf IN ARRAY leaves LOOP
        CONTINUE WHEN leaf !~ '^archive_[0-9]{6}$'
                   OR (to_date(right(leaf, 6), 'YYYYMM') + interval '1 month')::date - date '1970-01-01' > closed;
        EXECUTE format('SELECT EXISTS (SELECT FROM once.%I)', leaf) INTO filled;
        -- No row can be added: all of its days are retired.
        IF NOT filled THEN
            PERFORM set_config('lock_timeout', '100ms', true);
            PERFORM once._execute_ddl(format('ALTER TABLE once.archive DETACH PARTITION once.%I', leaf));
            PERFORM once._execute_ddl(format('DROP TABLE once.%I', leaf));
            RETURN ROW(1, true, NULL, format('%s is dropped', leaf))::once.kept;
        END IF;
    END LOOP;
    RETURN ROW(0, false, NULL, NULL)::once.kept;
END $$;
