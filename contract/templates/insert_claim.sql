-- SPDX-License-Identifier: PostgreSQL
-- insert_claim(into): the columns of a claimed intent; a SELECT of the values follows.
INSERT INTO {into} AS i (created_at, updated_at, expires_at, lease_until, bucket, fence, attempts, state, tenant, scope, key, fingerprint,
                         owner, traceparent)
