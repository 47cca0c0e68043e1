-- SPDX-License-Identifier: PostgreSQL
-- once_job.keep_steps(): the steps of a keeper's round, in order. Run each with once_job.keep_step, part by part; one that fails does not
-- stop the others.
CREATE FUNCTION once_job.keep_steps() RETURNS TABLE (ord integer, step text, what text)
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    VALUES
    (1,  'days',      'make the partitions of the days to come'),
    (2,  'clock',     'read the clock: while it is not steady, nothing is deleted'),
    (3,  'close',     'close the days that are past the horizon'),
    (4,  'doubt',     'in closed days, put stale attempts in doubt'),
    (5,  'move',      'move what outlives its day to the archive'),
    (6,  'detach',    'detach the partitions of closed days'),
    (7,  'drop',      'drop them'),
    (8,  'delayed',   'move the delayed events that are due to the outbox'),
    (9,  'untaken',   'count the events that no relay takes'),
    (10, 'outbox',    'drop the days of the outbox that every relay has passed'),
    (11, 'purge',     'delete the expired intents of keys without a day'),
    (12, 'sweep',     'count what is stale or in doubt, and recover what is stale'),
    (13, 'archive',   'delete what has expired from the archive'),
    (14, 'dead',      'give up dead events and messages past their retention'),
    (15, 'decisions', 'delete decisions past their retention')
$$;
