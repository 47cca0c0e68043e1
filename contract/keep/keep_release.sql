-- SPDX-License-Identifier: PostgreSQL
-- once_job.keep_release(keeper): a keeper that stops releases its lease, so that the next one can work at once. False if it did not hold
-- the lease.
CREATE FUNCTION once_job.keep_release(keeper text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now timestamptz := clock_timestamp();
BEGIN
    UPDATE once.keeper AS k SET lease_until = now WHERE k.keeper = keep_release.keeper COLLATE "C" AND k.lease_until > now;
    RETURN FOUND;
END $$;
