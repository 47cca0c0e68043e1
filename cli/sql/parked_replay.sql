-- SPDX-License-Identifier: PostgreSQL
SELECT json_build_object('relay', $1::text, 'from', $2::timestamptz, 'topic', $3::text,
    'replayed', once.parked_replay($1, $2::timestamptz, $3, $4, $5::boolean))
