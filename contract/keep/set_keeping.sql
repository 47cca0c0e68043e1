-- SPDX-License-Identifier: PostgreSQL
-- once.set_keeping(horizon_days, days_ahead, clock_skew, clock_settle, dead_retention, decision_retention, outbox_retention): changes the
-- settings of the whole installation, and returns them. A NULL argument changes nothing; defaults in brackets.
--   horizon_days        (7) past days whose UUIDv7 keys are accepted; older ones are expired. A closed day stays closed
--   days_ahead          (2) days whose partitions are created in advance
--   clock_skew          (5 minutes) how far in the future the day of a UUIDv7 key may begin
--   clock_settle        (1 hour) for how long the clock must be steady before anything is deleted
--   dead_retention      (90 days) dead events and messages are given up after it, and their decisions deleted
--   decision_retention  (400 days) entries of once.decision are deleted after it; never those of an intent that is in doubt
--   outbox_retention    (1 day) days of the outbox stay at least so long after they are over
-- Raises 23514 or 22023 for a value out of range; no retention is longer than 100 years.
CREATE FUNCTION once.set_keeping(horizon_days integer DEFAULT NULL, days_ahead integer DEFAULT NULL,
    clock_skew interval DEFAULT NULL, clock_settle interval DEFAULT NULL, dead_retention interval DEFAULT NULL,
    decision_retention interval DEFAULT NULL, outbox_retention interval DEFAULT NULL) RETURNS once.setting
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    setting once.setting;
BEGIN
    UPDATE once.setting AS s
       SET horizon_days = coalesce(horizon_days, s.horizon_days), days_ahead = coalesce(days_ahead, s.days_ahead),
           clock_skew = coalesce(clock_skew, s.clock_skew), clock_settle = coalesce(clock_settle, s.clock_settle),
           dead_retention = coalesce(dead_retention, s.dead_retention),
           decision_retention = coalesce(decision_retention, s.decision_retention),
           outbox_retention = coalesce(outbox_retention, s.outbox_retention)
     WHERE s.only_row
    RETURNING s.* INTO STRICT setting;
    setting.salt := NULL;       -- secret
    RETURN setting;
END $$;
