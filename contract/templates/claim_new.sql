-- SPDX-License-Identifier: PostgreSQL
-- claim_new(bucket): claims an intent that has no row. If the bucket is a constant, the look-up opens one partition.
-- expand: insert_claim(into => once.intent)
SELECT now, now, now + retention, now + lease, bucket, fence, 1, 'processing',
       tenant, scope, key, fingerprint, claimant, traceparent
 WHERE NOT EXISTS (SELECT FROM once.intent AS i
                    WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C"
                      AND i.key = key COLLATE "C" AND i.bucket = {bucket})
ON CONFLICT DO NOTHING;
