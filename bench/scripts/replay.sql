-- SPDX-License-Identifier: PostgreSQL
-- A retry of an intent that is finished.
SELECT once.begin('replay', {replayed_key}, {fingerprint});
