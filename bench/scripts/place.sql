-- SPDX-License-Identifier: PostgreSQL
-- The same, once: start and finish around it. The caller has the fingerprint, as libpgonce does.
SELECT orders.place({key}, {request}, {fingerprint});
