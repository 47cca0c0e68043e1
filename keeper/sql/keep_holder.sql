-- SPDX-License-Identifier: PostgreSQL
-- Who holds the lease: for the log.
SELECT l.keeper FROM once.keeper_lease() AS l
