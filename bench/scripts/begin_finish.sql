-- SPDX-License-Identifier: PostgreSQL
-- begin and finish alone, around no effect.
SELECT plain.nothing({key}, {fingerprint});
