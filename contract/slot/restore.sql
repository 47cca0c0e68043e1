-- SPDX-License-Identifier: PostgreSQL
-- After an upgrade has replaced the functions: a divided node keeps its guard and its slot_of, and an anchored one its anchor.
DO $$
BEGIN
    IF once._is_divided() THEN
        EXECUTE pg_catalog.current_setting('once.slot_of');
        PERFORM once._guard(true);
    END IF;
    IF pg_catalog.current_setting('once.anchor') <> '' THEN
        EXECUTE pg_catalog.current_setting('once.anchor');
    END IF;
END $$;
