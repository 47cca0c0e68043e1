-- SPDX-License-Identifier: PostgreSQL
-- A retry of an intent that is finished.
SELECT once.start('replay', {replayed_key}, {fingerprint});
