-- SPDX-License-Identifier: PostgreSQL
-- The story of an intent, twice: as it is, and with what users wrote turned to text. $1 scope, $2 key, $3 tenant.
SELECT jsonb_pretty(s.story),
       s.story || jsonb_build_object('now', clock_timestamp(), 'response_headers', s.story->>'response_headers',
           'decisions', (SELECT coalesce(jsonb_agg(d.one || jsonb_build_object('before', d.one->>'before', 'after', d.one->>'after')
                                                   ORDER BY d.nth), '[]')
                           FROM jsonb_array_elements(s.story->'decisions') WITH ORDINALITY AS d (one, nth)))
  FROM (SELECT once.story($1, $2, $3) AS story OFFSET 0) AS s
