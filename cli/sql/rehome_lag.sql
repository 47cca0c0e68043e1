-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: how many bytes of WAL the other node has still to confirm.
SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), s.confirmed_flush_lsn)::bigint
  FROM pg_replication_slots AS s WHERE s.slot_name = once._move_replication_slot()
