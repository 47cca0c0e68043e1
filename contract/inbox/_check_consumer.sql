-- SPDX-License-Identifier: PostgreSQL
-- once._check_consumer(tenant, consumer): raises if the names in a call about parked messages are invalid, or the caller has no right to
-- the tenant.
CREATE FUNCTION once._check_consumer(tenant text, consumer text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._check_and_lock(tenant, consumer, 'none', E'\\x00000000000000000000000000000000', false);
END $$;
