-- SPDX-License-Identifier: PostgreSQL
-- Does jsonb take this payload? Raises where it does not.
SELECT convert_from($1::bytea, 'UTF8')::jsonb IS NULL
