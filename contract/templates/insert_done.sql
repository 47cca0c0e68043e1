-- SPDX-License-Identifier: PostgreSQL
-- insert_done(into): the columns of an intent that is done and has no answer; the values follow.
INSERT INTO {into} AS i (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant, scope, key, fingerprint,
                         traceparent)
