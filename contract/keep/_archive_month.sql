-- SPDX-License-Identifier: PostgreSQL
-- once._archive_month(day): creates the archive's partition for the month of this day, if it is missing. With ATTACH, as in
-- once.add_days, so that no look-up waits.
CREATE FUNCTION once._archive_month(day integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    month date := date_trunc('month', date '1970-01-01' + day);
    leaf text := 'archive_' || to_char(month, 'YYYYMM');
BEGIN
    IF to_regclass('once.' || leaf) IS NOT NULL THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));
    IF to_regclass('once.' || leaf) IS NULL THEN
        PERFORM once._execute_ddl(format('CREATE TABLE once.%s (LIKE once.archive INCLUDING ALL)', leaf));
        PERFORM once._close(('once.' || leaf)::regclass);
        PERFORM once._execute_ddl(format('ALTER TABLE once.archive ATTACH PARTITION once.%s FOR VALUES FROM (%s) TO (%s)', leaf,
            month - date '1970-01-01', (month + interval '1 month')::date - date '1970-01-01'));
    END IF;
END $$;
