-- SPDX-License-Identifier: PostgreSQL
-- once.consumer_report(consumer, position, tenant, part): a consumer reports its progress: all messages that its broker has delivered or
-- may still deliver from before position were acknowledged, and cannot come back. part names what the position belongs to: a partition, a
-- queue. Nothing that a consumer's oldest position still needs is deleted: see once.retention_held. NULL for position: this part no
-- longer exists. A consumer that never reports holds nothing back. Cheap: writes only if the position moved by a second. Raises P4000,
-- P4003, and 22023 for names of more than 2600 bytes in total.
CREATE FUNCTION once.consumer_report(consumer text, "position" timestamptz, tenant text DEFAULT '', part text DEFAULT '')
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    reached timestamptz := consumer_report."position";
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    part := left(coalesce(part, ''), 255);
    IF octet_length(concat(consumer, tenant, part)) > 2600 THEN     -- the most that the primary key can hold
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: consumer, tenant and part are too long in total',
            DETAIL = format('they have %s bytes', octet_length(concat(consumer, tenant, part))),
            HINT = 'They may have 2600 bytes in total.';
    END IF;
    IF reached IS NULL THEN
        DELETE FROM once.consumer_position AS c
         WHERE c.consumer = consumer COLLATE "C" AND c.tenant = tenant COLLATE "C" AND c.part = part COLLATE "C";
        RETURN;
    END IF;
    INSERT INTO once.consumer_position AS c (consumer, tenant, part, "position", reported_at)
    VALUES (consumer, tenant, part, reached, now)
    ON CONFLICT ON CONSTRAINT consumer_position_pkey DO UPDATE
       SET "position" = excluded."position", reported_at = excluded.reported_at
     -- Backwards at once: messages that may come again must not be deleted.
     WHERE excluded."position" < c."position" OR excluded."position" > c."position" + interval '1 second';
END $$;
