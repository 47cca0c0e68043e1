-- SPDX-License-Identifier: PostgreSQL
-- once._move_begin(archive): call it at both nodes when publication and subscription are committed, first at the old one: waits for the
-- keeper's present step and for once.retire_day, which may have looked before; later ones find that slots are moving, and delete nothing.
-- Then makes the coming days and these months of the archive (once._move_facts), and enables the subscription, if it is here.
CREATE FUNCTION once._move_begin(archive jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE once.clock IN EXCLUSIVE MODE;        -- each step of a keeper locks its row
    PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));
    PERFORM once.add_days();
    PERFORM once._archive_month(m.day::integer) FROM jsonb_array_elements_text(archive) AS m (day);
    IF EXISTS (SELECT FROM pg_subscription AS s JOIN pg_database AS d ON d.oid = s.subdbid
                WHERE s.subname = 'pgonce_rehome' AND d.datname = current_database()) THEN
        PERFORM once._execute_ddl('ALTER SUBSCRIPTION pgonce_rehome ENABLE');
    END IF;
END $$;
