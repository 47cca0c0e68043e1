-- SPDX-License-Identifier: PostgreSQL
-- The same, once.
SELECT plain.place({key}, {request}, {fingerprint});
