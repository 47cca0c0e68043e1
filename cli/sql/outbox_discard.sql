-- SPDX-License-Identifier: PostgreSQL
SELECT to_json(once.outbox_discard($1::uuid, $2, $3))
