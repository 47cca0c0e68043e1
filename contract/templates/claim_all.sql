-- SPDX-License-Identifier: PostgreSQL
-- claim_all(into, bucket): claims all intents of a batch, all of one bucket, if none of them has a row. If the bucket is once._today(),
-- the plan opens one partition; if today has changed meanwhile, it claims none.
-- expand: insert_claim(into => {into})
SELECT now, now, now + retention, lease_until, {bucket}, fence, 1, 'processing', tenant, scope[n], key[n], fingerprint[n],
       owner, traceparents[n]
  FROM generate_series(1, size) AS n
 WHERE first_bucket = {bucket}
   AND NOT EXISTS (SELECT FROM generate_series(1, size) AS n
                    WHERE (SELECT true FROM {into} AS i
                            WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope[n] COLLATE "C"
                              AND i.key = key[n] COLLATE "C" AND i.bucket = {bucket}));
