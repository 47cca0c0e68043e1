-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: removes the subscription.
SELECT once._move_unsubscribe()
