-- SPDX-License-Identifier: PostgreSQL
-- receive_all(into, bucket, fence): stores all messages of a batch, all of one bucket, if none of them has a row and none is parked: see
-- claim_all.
-- expand: insert_done(into => {into})
SELECT now, now, now, {bucket}, {fence}, 1, 'succeeded', tenant, consumer, message_ids[n], fingerprints[n], traceparents[n]
  FROM generate_series(1, size) AS n
 WHERE first_bucket = {bucket}
   AND NOT EXISTS (SELECT FROM generate_series(1, size) AS n
                    WHERE (SELECT true FROM {into} AS i
                            WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C"
                              AND i.key = message_ids[n] COLLATE "C" AND i.bucket = {bucket}))
   AND NOT EXISTS (SELECT FROM once.parked_message AS p
                    WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C");
