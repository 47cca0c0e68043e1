-- SPDX-License-Identifier: PostgreSQL
-- Bounds, version 5: no term is longer than 100 years, as those of a claim are not, and every one ends after it has begun.
-- What is to be forgotten is found by adding terms to times and taking them away, and one that leads beyond what a timestamp
-- holds would stop the keeper for all scopes.

-- An interval is compared as if a month had 30 days, and added by the calendar: '-12 months 361 days' is more than nothing, and
-- ends before it began. So it is judged by the calendar too, from a February, where months are shortest.
-- What is too long becomes the longest; what ends in the past has never been what was meant, and becomes the default.
UPDATE once.setting AS s
   SET dead_retention = CASE WHEN s.dead_retention > '100 years' THEN '100 years'
                             WHEN timestamp '2001-02-01' + s.dead_retention <= '2001-02-01' THEN '90 days'
                             WHEN timestamp '2001-02-01' + s.dead_retention > '2101-02-01' THEN '100 years' ELSE s.dead_retention END,
       decision_retention = CASE WHEN s.decision_retention > '100 years' THEN '100 years'
                                 WHEN timestamp '2001-02-01' + s.decision_retention <= '2001-02-01' THEN '400 days'
                                 WHEN timestamp '2001-02-01' + s.decision_retention > '2101-02-01' THEN '100 years'
                                 ELSE s.decision_retention END,
       outbox_retention = CASE WHEN s.outbox_retention > '100 years' THEN '100 years'
                               WHEN timestamp '2001-02-01' + s.outbox_retention < '2001-02-01' THEN '1 day'
                               WHEN timestamp '2001-02-01' + s.outbox_retention > '2101-02-01' THEN '100 years'
                               ELSE s.outbox_retention END,
       clock_settle = CASE WHEN timestamp '2001-02-01' + s.clock_settle < '2001-02-01' THEN '1 hour'
                           WHEN timestamp '2001-02-01' + s.clock_settle > '2001-02-08' THEN '7 days' ELSE s.clock_settle END,
       clock_skew = CASE WHEN timestamp '2001-02-01' + s.clock_skew < '2001-02-01' THEN '5 minutes'
                         WHEN timestamp '2001-02-01' + s.clock_skew > '2001-02-01 12:00' THEN '12 hours' ELSE s.clock_skew END;
UPDATE once.scope AS p
   SET lease = CASE WHEN timestamp '2001-02-01' + p.lease <= '2001-02-01' THEN '60 seconds'
                    WHEN timestamp '2001-02-01' + p.lease > '2001-02-08' THEN '7 days' ELSE p.lease END,
       retention = CASE WHEN p.retention > '100 years' THEN '100 years'
                        WHEN timestamp '2001-02-01' + p.retention <= '2001-02-01' THEN '7 days'
                        WHEN timestamp '2001-02-01' + p.retention > '2101-02-01' THEN '100 years' ELSE p.retention END;

ALTER TABLE once.setting
    ADD CONSTRAINT dead_retention_is_at_most_100_years CHECK (dead_retention <= '100 years'
        AND timestamp '2001-02-01' + dead_retention > '2001-02-01' AND timestamp '2001-02-01' + dead_retention <= '2101-02-01'),
    ADD CONSTRAINT decision_retention_is_at_most_100_years CHECK (decision_retention <= '100 years'
        AND timestamp '2001-02-01' + decision_retention > '2001-02-01'
        AND timestamp '2001-02-01' + decision_retention <= '2101-02-01'),
    ADD CONSTRAINT outbox_retention_is_at_most_100_years CHECK (outbox_retention <= '100 years'
        AND timestamp '2001-02-01' + outbox_retention >= '2001-02-01'
        AND timestamp '2001-02-01' + outbox_retention <= '2101-02-01'),
    ADD CONSTRAINT clock_settle_is_at_most_7_days CHECK (timestamp '2001-02-01' + clock_settle >= '2001-02-01'
        AND timestamp '2001-02-01' + clock_settle <= '2001-02-08'),
    ADD CONSTRAINT clock_skew_is_at_most_12_hours CHECK (timestamp '2001-02-01' + clock_skew >= '2001-02-01'
        AND timestamp '2001-02-01' + clock_skew <= '2001-02-01 12:00');
ALTER TABLE once.scope
    ADD CONSTRAINT lease_is_at_most_7_days CHECK (timestamp '2001-02-01' + lease > '2001-02-01'
        AND timestamp '2001-02-01' + lease <= '2001-02-08'),
    ADD CONSTRAINT retention_is_at_most_100_years CHECK (retention <= '100 years'
        AND timestamp '2001-02-01' + retention > '2001-02-01' AND timestamp '2001-02-01' + retention <= '2101-02-01');

-- The latest day on which an intent's event may have been emitted, times 256: where it is today's, once.emit has not to look
-- into the partitions of the days to come. nextval alone moves it on: that never goes back, whoever does it at once, and a
-- crash adds 32 at most, as each attempt that moves it at the same time adds one. Hence the 256.
DO $$
BEGIN
    EXECUTE format('CREATE SEQUENCE once.outbox_day_seq MINVALUE 0 START WITH %s',
        256 * greatest(floor(date_part('epoch', clock_timestamp()) / 86400)::integer, (SELECT max(o.day) FROM once.outbox AS o)));
END $$;
COMMENT ON SEQUENCE once.outbox_day_seq IS 'the latest day of which there may be events, times 256';
