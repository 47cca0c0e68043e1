-- SPDX-License-Identifier: PostgreSQL
-- once._refuse_foreign(relay, detail): raises P4080: the relay's progress means nothing in this database.
CREATE FUNCTION once._refuse_foreign(relay text, detail text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    PERFORM once._refuse_relay('P4080', relay, e.message, e.hint, detail) FROM once.errors() AS e WHERE e.code = 'P4080';
END $$;
