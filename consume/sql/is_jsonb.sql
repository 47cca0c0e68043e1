-- SPDX-License-Identifier: PostgreSQL
-- Raises an error unless jsonb accepts this payload.
SELECT convert_from($1::bytea, 'UTF8')::jsonb IS NULL
