-- SPDX-License-Identifier: PostgreSQL
-- parked_fits: whether a parked event or message matches `wanted`. row: has topic, tenant, state, error. type: whether it is of
-- wanted.event_type. since: when it was emitted or parked. sqlstate: of its error.
(wanted.topic IS NULL OR {row}.topic = wanted.topic COLLATE "C") AND (wanted.tenant IS NULL OR {row}.tenant = wanted.tenant COLLATE "C")
AND (wanted.state IS NULL OR {row}.state = wanted.state COLLATE "C")
AND (wanted.error IS NULL OR {sqlstate} = wanted.error COLLATE "C" OR strpos(lower({row}.error), lower(wanted.error)) > 0)
AND (wanted.event_type IS NULL OR {type}) AND (wanted.before IS NULL OR {since} < wanted.before)
