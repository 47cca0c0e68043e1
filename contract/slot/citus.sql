-- SPDX-License-Identifier: PostgreSQL
-- At each installation and upgrade in a database with Citus: says what is missing without the anchor.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_extension AS e WHERE e.extname = 'citus')
       AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger AS t WHERE t.tgfoid = 'once._anchor()'::pg_catalog.regprocedure) THEN
        RAISE NOTICE 'pgonce: Citus does not commit the memory together with an effect on another node: %',
            'SELECT once.anchor(), or keep the effect on the node that remembers its key';
    END IF;
END $$;
