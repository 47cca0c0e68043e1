-- SPDX-License-Identifier: PostgreSQL
SELECT renewed FROM once.renew_many($1::text[], $2::text[], $3::integer[], $4::bigint * interval '1 millisecond',
    $5::text) ORDER BY ord
