-- SPDX-License-Identifier: PostgreSQL
-- Sent after finish: if finish fails, the server skips it.
COMMIT
