-- SPDX-License-Identifier: PostgreSQL
-- The same, and the fingerprint is made on the way.
SELECT orders.place({key}, {request});
