-- SPDX-License-Identifier: PostgreSQL
-- Is the session, and with it the relay's lock, still there?
SELECT true AS here
