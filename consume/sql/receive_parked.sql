-- SPDX-License-Identifier: PostgreSQL
-- The inbox for messages that were parked; what it refuses is raised.
SELECT once.receive($1::text, m.id, m.fingerprint, $4::text, traceparent => m.traceparent)
  FROM unnest($2::text[], $3::bytea[], $5::text[]) AS m (id, fingerprint, traceparent)
