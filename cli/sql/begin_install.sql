-- SPDX-License-Identifier: PostgreSQL
-- READ COMMITTED whatever the default: what another init committed while this one waited for the lock must be seen.
BEGIN ISOLATION LEVEL READ COMMITTED
