-- SPDX-License-Identifier: PostgreSQL
-- once._needed(day): why this day may not be closed yet: messages or events of it may still come back; NULL if none can. A consumer
-- counts only if its message ids have days: others lose nothing by it.
CREATE FUNCTION once._needed(day integer) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT n.why
      FROM (SELECT format('%s %s needs what is of %s and later', b.what, quote_literal(b.name), b.needed_from) AS why
              FROM once._backlog() AS b
             WHERE b.needed_from - (SELECT s.clock_skew FROM once.setting AS s WHERE s.only_row)
                   < to_timestamp((day + 1) * 86400.0)
               AND (b.what = 'relay' OR EXISTS (SELECT FROM once.intent AS i
                                                 WHERE i.tenant = b.tenant COLLATE "C" AND i.scope = b.name COLLATE "C"
                                                   AND i.bucket > 0))
             UNION ALL
            SELECT format('consumer %s has parked message %s of an earlier day', quote_literal(p.consumer),
                          quote_literal(p.message_id))
              FROM once.parked_message AS p
             WHERE p.state <> 'dead' AND once._bucket(p.message_id) BETWEEN 1 AND day) AS n
     LIMIT 1
$$;
