-- SPDX-License-Identifier: PostgreSQL
-- once.errors(): every SQLSTATE that the contract raises: its name, sentence, hint, and whether the same call may be retried unchanged.
-- Clients branch on the code and never on text.
CREATE FUNCTION once.errors(OUT code text, OUT name text, OUT retry boolean, OUT message text, OUT hint text)
RETURNS SETOF record LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    VALUES
    -- spec: errors
    ('P4000', 'scope_required', false, 'a scope of 1 to 255 characters is required',
     'Name the kind of operation, for example ''orders''.'),
    ('P4001', 'key_malformed', false, 'the key is missing or malformed',
     'Send 1 to 255 printable ASCII characters; a UUIDv7 must not come from the future (a prefix makes it an ordinary key).'),
    ('P4002', 'mismatch', false, 'the key was first used with another request',
     'Use a key for one request only. The first request and its answer are untouched.'),
    ('P4003', 'refused', false, 'the fingerprint or the tenant is refused',
     'Pass once.fingerprint(...) of the request, and a tenant that this role may use (once.bind).'),
    ('P4010', 'completion_refused', false, 'the completion is refused',
     'The attempt no longer holds the intent: discard its result. once.peek returns what is stored.'),
    ('P4011', 'failure_refused', false, 'the failure is refused',
     'The attempt no longer holds the intent: discard its result. once.peek returns what is stored.'),
    ('P4012', 'not_started', false, 'this transaction has not started the intent',
     'once.start, the effect and once.finish belong into one transaction, on one connection, with the same tenant, scope and key. '
     'Autocommit, or a pool that takes another connection for each query, keeps them apart; ROLLBACK TO a savepoint, or an EXCEPTION '
     'block that has caught an error, undoes the start. Where start said replay_success there is nothing to finish; what once.claim '
     'began, once.complete ends.'),
    ('P4013', 'unfinished', false, 'this transaction has started an intent and not finished it',
     'Nothing was committed: the effect would not be recorded, and a retry would repeat it. Call once.finish before COMMIT, if once.start'
     ' said proceed; state => ''failed_retryable'' if there was no effect. In autocommit each statement commits separately: begin a '
     'transaction first.'),
    ('P4014', 'already_started', false, 'this transaction has started this intent already',
     'The first start lets the effect run once: go on to once.finish. Functions called within the effect must not start the intent again;'
     ' another effect is another intent, with another scope or key.'),
    ('P4015', 'another_fingerprint', false, 'this transaction has started the intent with another fingerprint',
     'Give once.finish the fingerprint that once.start took: compute it once. Else a retry of the request that ran would be refused.'),
    ('P4020', 'already_finished', false, 'the intent is finished and has an outcome',
     'Read the outcome with once.peek or once.start.'),
    ('P4029', 'active', true, 'another attempt of this intent is running',
     'Try again after a short delay, with the same key.'),
    ('P4030', 'final_failure', false, 'the intent failed for good',
     'once.peek returns the stored outcome. A new intent needs a new key.'),
    ('P4031', 'in_doubt', false, 'the outcome of this intent is unknown',
     'Find out whether the effect happened, then decide with once.resolve. Until then no attempt runs, except a claim with takeover => '
     'true after an attempt that fell silent.'),
    ('P4041', 'expired', false, 'the key is older than what is remembered',
     'This attempt was not run; an earlier one may have been: look for the effect itself. A UUIDv7 that is used long after it was made '
     'needs a prefix, as in ''refund:'' || id; a message id is opaque to once.receive unless it is called with birthdays.'),
    ('P4050', 'message_mismatch', false, 'the message id was first used with another payload',
     'Message ids must name one message. The first message''s effect is untouched.'),
    ('P4051', 'event_mismatch', false, 'this intent has already emitted this event with another payload',
     'One event of a type per intent: give the second one another event_type.'),
    ('P4060', 'too_large', false, 'the outcome or the event is too large',
     'Store a reference to it. once.set_scope raises the limits of a body (response_bytes_max) and a payload (event_bytes_max).'),
    ('P4070', 'resolution_refused', false, 'the decision is refused',
     'Only a stale, in-doubt or retryable intent can be decided, and only with a reason.'),
    ('P4080', 'relay_foreign', false, 'the relay''s progress means nothing in this database',
     'It was written in another database, or its row was rewritten. After pg_repack of once.relay: once.relay_adopt(relay, reason, '
     'xids_continue => true). After a restore or a copy: docs/how/failover.md.'),
    ('P4097', 'slot_closed', true, 'this node does not serve the tenant now',
     'Nothing was done. Send the call to the node where the tenant''s slot is open (once.slots() on each node), or try again: the slot '
     'may be moving.'),
    ('P4098', 'partition_missing', true, 'the partition for this day is missing',
     'Try again: another transaction is creating it, or the next call does. If it stays missing, run SELECT once.add_days() as the '
     'contract''s owner; pgonce doctor gives the reason.'),
    ('P4099', 'unknown_state', false, 'the intent is in a state that this function does not know',
     'The contract and its callers may be of different versions: run pgonce doctor.')
    -- end of spec
$$;
