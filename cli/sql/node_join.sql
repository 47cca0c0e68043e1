-- SPDX-License-Identifier: PostgreSQL
-- pgonce init --join: makes this database a node like the one that $1 describes.
SELECT j.joined, j.policies, j.bindings FROM once._join($1::jsonb) AS j
