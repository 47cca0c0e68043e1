-- SPDX-License-Identifier: PostgreSQL
-- The intents of a measurement. Only the owner of the contract may.
DELETE FROM once.intent AS i WHERE i.tenant = '' COLLATE "C" AND i.scope = $1 COLLATE "C" AND i.bucket = 0
