-- SPDX-License-Identifier: PostgreSQL
-- Sent behind finish: a finish that fails has the server skip it.
COMMIT
