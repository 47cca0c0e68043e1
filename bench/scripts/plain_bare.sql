-- SPDX-License-Identifier: PostgreSQL
-- The cheapest order transaction: two INSERTs.
SELECT plain.place_bare({request});
