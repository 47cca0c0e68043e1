-- SPDX-License-Identifier: PostgreSQL
-- once_job.keep_take(keeper, lease): makes this keeper the one that works, for the length of the lease; call it again to renew the lease.
-- False: another keeper works. The lease is a row and not a lock, so that it works behind a pooler in transaction mode. Raises 22023 for
-- a bad name or lease. Two keepers at once, one of them past its lease, would do no harm: each step is safe to run concurrently with
-- itself.
CREATE FUNCTION once_job.keep_take(keeper text, lease interval DEFAULT '60 seconds') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
BEGIN
    IF (length(keeper) BETWEEN 1 AND 255 AND lease > '0' AND lease <= '1 day') IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: a keeper has a name of 1 to 255 characters and a lease of'
            ' at most a day';
    END IF;
    -- A standby keeper only reads. A lease that ends later than any could, or whose holder began a round well after now, was taken while
    -- the clock was ahead: it is ignored.
    PERFORM FROM once.keeper AS k WHERE k.keeper <> keeper COLLATE "C" AND k.lease_until > now
        AND k.lease_until <= now + interval '1 day' AND (k.last_round > now + interval '1 minute') IS NOT TRUE;
    IF FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO once.keeper AS k (keeper, lease_until) VALUES (keeper, now + lease)
    ON CONFLICT (only_row) DO UPDATE SET keeper = excluded.keeper, lease_until = excluded.lease_until
     WHERE k.keeper = excluded.keeper OR k.lease_until <= now OR k.lease_until > now + interval '1 day'
        OR k.last_round > now + interval '1 minute';
    RETURN FOUND;
END $$;
