-- SPDX-License-Identifier: PostgreSQL
SELECT once.outbox_event($1::uuid)
