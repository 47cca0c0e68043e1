-- SPDX-License-Identifier: PostgreSQL
-- once.outbox_pending: what each relay has still to deliver, by topic and state (see once.outbox_summary), and how old the
-- oldest of it is. No row for a relay with nothing to do. Counts, and so reads, all of the backlog.
CREATE VIEW once.outbox_pending (relay, topic, state, events, oldest, lag) AS
SELECT s.relay, s.topic, s.state, s.events, s.oldest, clock_timestamp() - s.oldest
  FROM once.outbox_summary() AS s
 WHERE s.events > 0;
