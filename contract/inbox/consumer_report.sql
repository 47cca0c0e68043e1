-- SPDX-License-Identifier: PostgreSQL
-- once.consumer_report(consumer, position, tenant, part): a consumer reports how far it is:
-- whatever its broker has delivered or may still deliver from before position was acknowledged, and
-- cannot come back. part names what the position is of: a partition, a queue. Nothing is deleted
-- that a consumer's oldest position still needs: see once.retention_held. NULL for position: this
-- part is no more. A consumer that never reports holds nothing back. Cheap: writes only where the
-- position moved by a second. Raises P4000, P4003, and 22023 for names of more than 2600 bytes
-- together.
CREATE FUNCTION once.consumer_report(consumer text, "position" timestamptz, tenant text DEFAULT '', part text DEFAULT '')
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    reached timestamptz := consumer_report."position";
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    part := left(coalesce(part, ''), 255);
    IF octet_length(concat(consumer, tenant, part)) > 2600 THEN     -- what the primary key holds
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: the names in a report are too long together',
            DETAIL = format('they have %s bytes', octet_length(concat(consumer, tenant, part))),
            HINT = 'consumer, tenant and part: at most 2600 bytes together.';
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
     -- Backwards at once: what may come back again must not be deleted.
     WHERE excluded."position" < c."position" OR excluded."position" > c."position" + interval '1 second';
END $$;
