-- SPDX-License-Identifier: PostgreSQL
-- Why pgonce_native leaves plain calls to SQL, of intents and of events; '' where it answers them. Runs nothing.
SELECT coalesce(once_native.obstacle(false), '') AS intents, coalesce(once_native.obstacle(true), '') AS events
