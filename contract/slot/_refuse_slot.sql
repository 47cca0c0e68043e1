-- SPDX-License-Identifier: PostgreSQL
-- once._refuse_slot(tenant, scope, key): raises P4097 unless this node serves the tenant (NULL: all tenants).
-- Names the slot and its epoch here, so that a client knows whether what it has learnt from other nodes is newer.
CREATE FUNCTION once._refuse_slot(tenant text, scope text, key text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    slot integer := once.slot_of(tenant);
BEGIN
    IF tenant IS NOT NULL AND once._serves(tenant) IS NOT TRUE THEN
        PERFORM once._refuse('P4097', tenant, scope, key, format('slot=%s epoch=%s', slot, once._slot_state(slot) / 2));
    END IF;
END $$;
