-- SPDX-License-Identifier: PostgreSQL
-- once._days(parent, prefix): the days that have a partition whose name begins with prefix, in order. once.intent_dN are open days,
-- once.intent_closed_dN those that are being retired.
CREATE FUNCTION once._days(parent regclass, prefix text) RETURNS SETOF integer LANGUAGE sql STABLE AS $$
    SELECT substr(c.relname, length(prefix) + 1)::integer AS day
      FROM pg_inherits AS h JOIN pg_class AS c ON c.oid = h.inhrelid
     WHERE h.inhparent = parent AND c.relname ~ ('^' || prefix || '[1-9][0-9]*$')
     ORDER BY day
$$;
