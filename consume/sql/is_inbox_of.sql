-- SPDX-License-Identifier: PostgreSQL
-- Does the inbox hold messages under ids of this kind?
SELECT $3::text = ANY (once.consumer_ids($1::text, $2::text))
