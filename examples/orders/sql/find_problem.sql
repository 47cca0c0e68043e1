-- SPDX-License-Identifier: PostgreSQL
-- What is wrong with a request; NULL where nothing is.
SELECT orders.problem_with($1::jsonb)
