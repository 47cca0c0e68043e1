-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: stops the subscription.
SELECT once._move_disable()
