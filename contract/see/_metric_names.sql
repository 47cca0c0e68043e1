-- SPDX-License-Identifier: PostgreSQL
-- once._metric_names(): the metrics of once.metrics, with their descriptions. Alerts and dashboards use these names.
CREATE FUNCTION once._metric_names() RETURNS TABLE (name text, kind text, help text) LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    VALUES
    ('pgonce_intents', 'counter', 'Attempts in the database by their answer: new, replay, mismatch, active, stale (taken over),'
     ' retryable (taken over), final, in_doubt, expired.'),
    ('pgonce_inbox', 'counter', 'Messages in the database by the inbox''s answer: process, duplicate, mismatch.'),
    ('pgonce_stale', 'gauge', 'Attempts whose lease has passed without a report, at the last sweep.'),
    ('pgonce_stale_oldest_seconds', 'gauge', 'For how long the oldest stale attempt has been stale.'),
    ('pgonce_in_doubt', 'gauge', 'Intents with an unknown outcome, at the last sweep.'),
    ('pgonce_outbox_pending', 'gauge', 'Events that a relay has neither delivered nor parked yet.'),
    ('pgonce_outbox_lag_seconds', 'gauge', 'The age of the oldest pending event.'),
    ('pgonce_outbox_untaken', 'gauge', 'Events that no relay takes, by topic: they will not be published. Among the newest 10,000, or'
     ' in the keeper''s last pass through the outbox.'),
    ('pgonce_outbox_delayed', 'gauge', 'Events of once.emit_later that are not due yet, by topic. No other metric counts them.'),
    ('pgonce_outbox_delayed_late_seconds', 'gauge', 'For how long the first delayed event has been due. If longer than a round of'
     ' the keeper, neither a relay nor the keeper releases it.'),
    ('pgonce_outbox_parked', 'gauge', 'Events that a relay has parked, by state: waiting, retrying, dead.'),
    ('pgonce_capture_active', 'gauge', '1: a client is connected to the replication slot, which counts as a relay.'),
    ('pgonce_capture_broken', 'gauge', '1: the slot is gone, invalidated or another server''s, so nothing follows it; the outbox is kept.'),
    ('pgonce_capture_behind_bytes', 'gauge', 'WAL that the slot''s client has not confirmed.'),
    ('pgonce_capture_kept_bytes', 'gauge', 'WAL that the server keeps for the slot.'),
    ('pgonce_inbox_parked', 'gauge', 'Messages that a consumer has parked, by state: waiting, retrying, dead.'),
    ('pgonce_table_bytes', 'gauge', 'Size of a table with its indexes and partitions.'),
    ('pgonce_partition_bytes', 'gauge', 'Size of the partition of a day with its indexes.'),
    ('pgonce_partitions_ahead', 'gauge', 'Days after today that have their partition.'),
    ('pgonce_partitions_closing', 'gauge', 'Days that are being retired.'),
    ('pgonce_keeper_last_success_timestamp_seconds', 'gauge', 'When a step of the keeper last succeeded.'),
    ('pgonce_keeper_failing', 'gauge', '1: the last run of a step of the keeper failed.'),
    ('pgonce_retention_held', 'gauge', 'How many causes prevent the deletion of old rows.'),
    ('pgonce_clock_held', 'gauge', '1: nothing is deleted, because the clock is not steady.'),
    ('pgonce_contract_version', 'gauge', 'The version of the contract.'),
    ('pgonce_oldest_transaction_seconds', 'gauge', 'The age of the oldest open transaction, which holds back vacuum.'),
    ('pgonce_xid_age', 'gauge', 'Transactions since this database was last frozen.')
$$;
