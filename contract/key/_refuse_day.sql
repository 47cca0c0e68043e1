-- SPDX-License-Identifier: PostgreSQL
-- once._refuse_day(tenant, scope, key, bucket): raises if the day of a new key is closed, future or missing; raises 40001 if it was
-- retired after the snapshot (once._archived).
CREATE FUNCTION once._refuse_day(tenant text, scope text, key text, bucket integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    day text := to_char(date '1970-01-01' + bucket, 'YYYY-MM-DD');
BEGIN
    CASE once._day_state(bucket)
        WHEN 'open' THEN RETURN;
        WHEN 'closed' THEN
            PERFORM once._count('expired');
            PERFORM once._refuse('P4041', tenant, scope, key, 'the key was made on ' || day);
        WHEN 'future' THEN PERFORM once._refuse('P4001', tenant, scope, key, 'the key claims to be made on ' || day);
        ELSE
            PERFORM once._archived(tenant, scope, key, bucket);
            PERFORM once._refuse('P4098', tenant, scope, key, 'no partition for ' || day);
    END CASE;
END $$;
