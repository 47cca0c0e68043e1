-- SPDX-License-Identifier: PostgreSQL
-- claim_all(into, bucket): claims all intents of a batch, all of one bucket, if none of them has a row.
-- expand: insert_claim(into => {into})
SELECT now, now, now + retention, now + term, {bucket}, fence, 1, 'processing', tenant, scope[n], key[n], fingerprint[n],
       owner, CASE WHEN traceparents[n] IS NOT NULL THEN once._trace(traceparents[n]) END
  FROM generate_series(1, size) AS n
 WHERE NOT EXISTS (SELECT FROM generate_series(1, size) AS n
                    WHERE (SELECT true FROM {into} AS i
                            WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope[n] COLLATE "C"
                              AND i.key = key[n] COLLATE "C" AND i.bucket = {bucket}));
