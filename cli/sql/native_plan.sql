-- SPDX-License-Identifier: PostgreSQL
-- Which function a call of once.start becomes in this session. Runs nothing.
EXPLAIN (VERBOSE, COSTS OFF) SELECT once.start('pgonce doctor', 'pgonce doctor', E'\\x00000000000000000000000000000000')
