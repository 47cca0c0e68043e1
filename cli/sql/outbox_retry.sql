-- SPDX-License-Identifier: PostgreSQL
SELECT to_json(once.outbox_retry($1::uuid, $2, $3))
