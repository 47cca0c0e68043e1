-- SPDX-License-Identifier: PostgreSQL
-- Does the inbox hold messages under ids of this kind? Of both kinds?
SELECT $3::text = ANY (c.ids), cardinality(c.ids) > 1
  FROM once.consumer_ids($1::text, $2::text) AS c (ids)
