-- SPDX-License-Identifier: PostgreSQL
-- Whether the inbox holds messages under ids of this kind, and of both kinds.
SELECT $3::text = ANY (c.ids), cardinality(c.ids) > 1
  FROM once.consumer_ids($1::text, $2::text) AS c (ids)
