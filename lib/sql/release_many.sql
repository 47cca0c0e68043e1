-- SPDX-License-Identifier: PostgreSQL
-- once.release for many claims of one tenant. In the order of their keys, so that two batches over the same intents
-- cannot deadlock; ord is the element of a row.
SELECT u.ord::integer AS ord, once.release(u.scope, u.key, u.fence, $4::text) AS released
  FROM (SELECT * FROM unnest($1::text[], $2::text[], $3::integer[]) WITH ORDINALITY AS u (scope, key, fence, ord)
         ORDER BY u.scope COLLATE "C", u.key COLLATE "C", u.ord) AS u
