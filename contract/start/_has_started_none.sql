-- SPDX-License-Identifier: PostgreSQL
-- once._has_started_none(): whether this transaction has started no intent at all (once._note_start). Inlined.
CREATE FUNCTION once._has_started_none() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce(current_setting('once.started', true), '') = ''
$$;
