-- SPDX-License-Identifier: PostgreSQL
-- After an upgrade has replaced the functions: a divided node keeps its guard and its slot_of.
DO $$
BEGIN
    IF once._is_divided() THEN
        EXECUTE pg_catalog.current_setting('once.slot_of');
        PERFORM once._guard(true);
    END IF;
END $$;
