-- SPDX-License-Identifier: PostgreSQL
-- Parks messages that are not applied now.
SELECT once_job.message_park($1::text, $2::text, ARRAY(
    SELECT ROW(p.message_id, p.topic, p.key, p.headers, p.payload, p.fingerprint, p.state, p.attempts, p.wait_ms, p.error,
               p.sqlstate)::once.parked
      FROM unnest($3::text[], $4::text[], $5::text[], $6::jsonb[], $7::bytea[], $8::bytea[], $9::text[],
                  $10::integer[], $11::bigint[], $12::text[], $13::text[])
           AS p (message_id, topic, key, headers, payload, fingerprint, state, attempts, wait_ms, error, sqlstate)))
