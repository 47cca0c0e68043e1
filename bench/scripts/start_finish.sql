-- SPDX-License-Identifier: PostgreSQL
-- start and finish alone, around no effect.
SELECT plain.nothing({key}, {fingerprint});
