-- SPDX-License-Identifier: PostgreSQL
-- once.outbox_pending: each relay's backlog, by topic and state (see once.outbox_summary), and the age of its oldest event. No row for a
-- relay without a backlog. Counts, and so reads, the whole backlog.
CREATE VIEW once.outbox_pending (relay, topic, state, events, oldest, lag) AS
SELECT s.relay, s.topic, s.state, s.events, s.oldest, clock_timestamp() - s.oldest
  FROM once.outbox_summary() AS s
 WHERE s.events > 0;
