-- SPDX-License-Identifier: PostgreSQL
-- At each installation and upgrade: says what Citus does not do.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_extension AS e WHERE e.extname = 'citus') THEN
        RAISE NOTICE 'pgonce: Citus does not commit the memory together with an effect on another node: %',
            'keep the effect on the node that remembers its key';
    END IF;
END $$;
